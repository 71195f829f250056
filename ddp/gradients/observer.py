"""What whoever watches a Reducer is told: the timeline, for one. Nothing is put in the place of its methods."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ddp.gradients.bucket import Bucket
    from ddp.gradients.reducer import Reducer


class Observer(Protocol):
    """See the module; the calls come on the thread that moves the bucket on."""

    def bucket_filled(self, bucket: "Bucket") -> None:
        """It is about to be sent."""

    def bucket_handed_out(self, bucket: "Bucket") -> None:
        """Its sum is in every parameter's `.grad`."""

    def backward_ended(self, reducer: "Reducer") -> None:
        """All buckets are handed out."""
