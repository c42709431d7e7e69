"""One execution of one pass between two CUDA events, begun on an idle GPU."""

import torch

from .protocol import RequestError

PASSES = ("forward", "forward-inference", "backward")


class Timer:
    """before: called on every rank right before a measurement, so that ranks start together."""

    def __init__(self, before):
        self.before = before

    def between_events(self, work, prepare=lambda: None):
        """Milliseconds of work(prepare()'s result). What prepare enqueues ends before the clock
        starts, and the host launches work behind it, as it runs ahead in a training step."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        self.before()
        torch.cuda.synchronize()
        prepared = prepare()
        begin.record()
        result = work(prepared)
        end.record()
        torch.cuda.synchronize()
        del result  # what the pass keeps lives as long as the pass
        return begin.elapsed_time(end)

    def layer_ms(self, layer, pass_name, tensors):
        """A differentiable layer. A backward's forward is enqueued before the clock starts;
        gradients are made anew, not added up."""
        if pass_name == "forward-inference":
            with torch.no_grad():
                return self.between_events(lambda _: layer())
        if pass_name == "forward":
            return self.between_events(lambda _: layer())
        try:
            return self.between_events(lambda out: out.backward(tensors.d_out), prepare=layer)
        finally:
            clear_gradients(layer, tensors)

    def products_ms(self, products, pass_name):
        with torch.no_grad():
            work = products.backward if pass_name == "backward" else products.forward
            return self.between_events(lambda _: work())


def clear_gradients(layer, tensors):
    """Those of the case's tensors, and of what the layer has besides."""
    tensors.clear_gradients()
    if hasattr(layer, "clear_gradients"):
        layer.clear_gradients()


def require_pass(pass_name):
    if pass_name not in PASSES:
        raise RequestError(f"pass: expected one of {', '.join(PASSES)}, found {pass_name!r}")
