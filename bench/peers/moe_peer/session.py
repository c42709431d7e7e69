"""One rank's part of the requests: the layers that can run here, and their times."""

import torch
import torch.distributed as dist
import triton

from . import adapters, checks
from .case import Shape, Tensors
from .gemm_only import make_gemm_only
from .layers import NcclLayer, TorchLayer
from .memory import PassMemory
from .protocol import RequestError, sentence_of
from .timing import Timer, clear_gradients, require_pass


class Session:
    def __init__(self, rank, num_ranks):
        if not torch.cuda.is_available():
            raise RequestError("torch finds no GPU")
        if torch.cuda.device_count() < num_ranks:
            raise RequestError(f"ranks: expected at most the {torch.cuda.device_count()} GPUs that "
                               f"there are, found {num_ranks}")
        self.rank, self.num_ranks = rank, num_ranks
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self.timer = Timer(dist.barrier if num_ranks > 1 else lambda: None)
        self.shape = self.tensors = None
        self.layers, self.products, self.memory = {}, {}, {}

    def setup(self, fields):
        """Tensors of the case, then every layer once: one that cannot run, or computes something
        else, is left out with the reason."""
        self.release()
        shape = Shape.from_request(fields)
        if shape.ranks != self.num_ranks:
            raise RequestError(f"ranks: expected {self.num_ranks}, found {shape.ranks}")
        torch.cuda.reset_peak_memory_stats()
        self.shape, self.tensors = shape, Tensors(shape, self.rank, self.device)
        left_out = {}
        if "torch" in shape.peers:
            self.products = {p.name: p for p in make_gemm_only(shape, self.tensors)}
        expected = self.add_first_layer(keep="torch" in shape.peers)
        for name, make in adapters.ADAPTERS.items():
            if name in shape.peers:
                try:
                    self.add_adapter(name, make, expected)
                except Exception as error:  # of a library that this program does not know
                    left_out[name] = sentence_of(error)
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        return {"names": [*self.layers, *self.products], "left_out": left_out,
                "torch": torch.__version__, "triton": triton.__version__,
                "nccl": ".".join(str(n) for n in torch.cuda.nccl.version()),
                "device": torch.cuda.get_device_name(self.device), "peak_bytes": peak}

    def add_first_layer(self, keep):
        kind = TorchLayer if self.num_ranks == 1 else NcclLayer
        layer = kind(self.shape, self.rank, self.tensors)
        with torch.no_grad():
            out = layer()
        checks.check_first_layer(layer.name, out, self.shape, self.rank, self.tensors)
        if keep:
            self.layers[layer.name] = layer
        return out

    def add_adapter(self, name, make, expected):
        layer = make(self.shape, self.rank, self.tensors)
        with torch.no_grad():
            checks.require_equal(name, layer(), expected)
        self.layers[layer.name] = layer

    def run(self, name, pass_name):
        require_pass(pass_name)
        if name not in self.layers and name not in self.products:
            raise RequestError(f"run: expected one of {[*self.layers, *self.products]}, "
                               f"found {name!r}")
        if (name, pass_name) not in self.memory:
            self.measure_memory(name, pass_name)  # libraries take what they keep for good
            self.memory[name, pass_name] = self.measure_memory(name, pass_name)
        if name in self.layers:
            ms = self.timer.layer_ms(self.layers[name], pass_name, self.tensors)
        else:
            ms = self.timer.products_ms(self.products[name], pass_name)
        return {"ms": ms, **self.memory[name, pass_name]}

    def measure_memory(self, name, pass_name):
        """Of an execution that is not timed, for asking the allocator takes time. A backward's
        begins with its forward."""
        memory = PassMemory(torch.cuda)
        if name in self.products:
            with torch.no_grad():
                products = self.products[name]
                results = products.backward() if pass_name == "backward" else products.forward()
                del results
            return memory.answer()
        layer = self.layers[name]
        with torch.set_grad_enabled(pass_name != "forward-inference"):
            out = layer()
        memory.forward_has_ended(out)
        if pass_name == "backward":
            try:
                out.backward(self.tensors.d_out)
            finally:
                clear_gradients(layer, self.tensors)
        return memory.answer()

    def release(self):
        self.layers, self.products, self.memory = {}, {}, {}
        self.shape = self.tensors = None
        torch.cuda.empty_cache()
        return {}

    def close(self):
        self.release()
