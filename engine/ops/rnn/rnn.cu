// One time step of an LSTM or a GRU between its matrix products: a thread an element of the state. Matrices are (batch,
// hidden) or (batch, gates * hidden); the orders of gates are i, f, g, o and r, z, n, as engine/ops/rnn/kernels.py has
// them.

DEVICE real logistic(real x) { return (real)1 / ((real)1 + exponential(-x)); }

// `first`: of the element `at` of the state, its place in gate 0; those of the other gates follow by `hidden`.
#define EVERY(at)                                                                                             \
    for (int64 at = (int64)blockIdx.x * blockDim.x + threadIdx.x; at < batch * hidden;                            \
         at += (int64)gridDim.x * blockDim.x)
#define FIRST(at, gates) (at + at / hidden * (gates - 1) * hidden)

extern "C" __global__ void lstm_cell(
    element* gates, const element* recurrent, const element* bias, const element* cell, element* new_cell,
    element* out, int64 batch, int64 hidden) {
    EVERY(at) {
        int64 first = FIRST(at, 4), k = at % hidden;
        real sums[4];
#pragma unroll
        for (int gate = 0; gate < 4; gate++) {
            int64 place = first + gate * hidden;
            sums[gate] = (real)gates[place] + ((real)recurrent[place] + (real)bias[k + gate * hidden]);
        }
        real i = logistic(sums[0]), f = logistic(sums[1]), g = hyperbolic_tangent(sums[2]), o = logistic(sums[3]);
        real c = f * (real)cell[at] + i * g;
        gates[first] = (element)i;
        gates[first + hidden] = (element)f;
        gates[first + 2 * hidden] = (element)g;
        gates[first + 3 * hidden] = (element)o;
        new_cell[at] = (element)c;
        out[at] = (element)(o * hyperbolic_tangent(c));
    }
}

extern "C" __global__ void lstm_cell_backward(
    const element* from_output, const element* from_later, element* of_cell, const element* gates, const element* cell,
    const element* new_cell, element* of_gates, int64 batch, int64 hidden) {
    EVERY(at) {
        int64 first = FIRST(at, 4);
        real i = (real)gates[first], f = (real)gates[first + hidden], g = (real)gates[first + 2 * hidden];
        real o = (real)gates[first + 3 * hidden], tanh_of_cell = hyperbolic_tangent((real)new_cell[at]);
        real of_out = (real)from_output[at] + (real)from_later[at];
        real of_c = (real)of_cell[at] + of_out * o * ((real)1 - tanh_of_cell * tanh_of_cell);
        of_gates[first] = (element)(of_c * g * i * ((real)1 - i));
        of_gates[first + hidden] = (element)(of_c * (real)cell[at] * f * ((real)1 - f));
        of_gates[first + 2 * hidden] = (element)(of_c * i * ((real)1 - g * g));
        of_gates[first + 3 * hidden] = (element)(of_out * tanh_of_cell * o * ((real)1 - o));
        of_cell[at] = (element)(of_c * f);
    }
}

extern "C" __global__ void gru_cell(
    element* gates, const element* recurrent, const element* bias, const element* before, element* candidate,
    element* out, int64 batch, int64 hidden) {
    EVERY(at) {
        int64 first = FIRST(at, 3), k = at % hidden;
        real more[3];
#pragma unroll
        for (int gate = 0; gate < 3; gate++)
            more[gate] = (real)recurrent[first + gate * hidden] + (real)bias[k + gate * hidden];
        real r = logistic((real)gates[first] + more[0]), z = logistic((real)gates[first + hidden] + more[1]);
        real n = hyperbolic_tangent((real)gates[first + 2 * hidden] + r * more[2]);
        gates[first] = (element)r;
        gates[first + hidden] = (element)z;
        gates[first + 2 * hidden] = (element)n;
        candidate[at] = (element)more[2];
        out[at] = (element)(n + z * ((real)before[at] - n));
    }
}

extern "C" __global__ void gru_cell_backward(
    const element* from_output, const element* from_later, element* direct, const element* gates,
    const element* candidate, const element* before, element* of_gates, element* of_recurrent, int64 batch,
    int64 hidden) {
    EVERY(at) {
        int64 first = FIRST(at, 3);
        real r = (real)gates[first], z = (real)gates[first + hidden], n = (real)gates[first + 2 * hidden];
        real of_out = (real)from_output[at] + (real)from_later[at] + (real)direct[at];
        real of_new = of_out * ((real)1 - z) * ((real)1 - n * n);
        real of_r = of_new * (real)candidate[at] * r * ((real)1 - r);
        real of_z = of_out * ((real)before[at] - n) * z * ((real)1 - z);
        of_gates[first] = of_recurrent[first] = (element)of_r;
        of_gates[first + hidden] = of_recurrent[first + hidden] = (element)of_z;
        of_gates[first + 2 * hidden] = (element)of_new;
        of_recurrent[first + 2 * hidden] = (element)(of_new * r);
        direct[at] = (element)(of_out * z);
    }
}
