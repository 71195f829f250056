import os, pytest
from tests.engine.cuda.test_operators import *
from tests.engine.cuda import test_operators as T
del test_operators
MINE = os.environ.get("K1", "layer_norm rms_norm group_norm batch_norm_training batch_norm_inference softmax log_softmax cross_entropy nll_loss gelu silu leaky_relu elu hardtanh hardsigmoid hardswish threshold hardshrink softshrink softplus mish logsigmoid relu sigmoid tanh embedding embedding_backward max_pool max_pool_with_indices adaptive_max_pool avg_pool avg_pool_gradient masked_scale lstm gru rnn_tanh rnn_relu").split()
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")
@pytest.mark.parametrize("name", MINE)
def test_mine(name, cuda):
    assert name in SAMPLES, name
    all_of((f"{name}, sample {number}: shapes {[np.shape(a) for a in sample.arrays]}, {layout}", lambda sample=sample, layout=layout: T.compare(name, sample, layout, cuda))
      for number, sample in enumerate(SAMPLES[name]) for layout in layouts(sample))
