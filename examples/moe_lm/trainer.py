"""The optimizer: AdamW on F32 masters of BF16 parameters."""

from __future__ import annotations

import argparse

import torch
from torch.nn.parallel import DistributedDataParallel

from .job import Job
from .model import Model


class Trainer:
    """Gradients of what every rank holds are averaged by DistributedDataParallel during the
    backward. An expert's gradient is the sum over all ranks' tokens already, for it has one owner."""

    def __init__(self, model: Model, config: argparse.Namespace, job: Job):
        self.config, self.job = config, job
        self.names = [name for name, _ in model.named_parameters()]
        self.expert_names = set(model.expert_names())
        self.parameters = list(model.parameters())
        self.masters = [p.detach().float().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=config.lr, weight_decay=0.01, fused=job.device.type == "cuda"
        )
        self.model = model
        if job.size > 1:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                model, list(self.expert_names)
            )
            self.model = DistributedDataParallel(model)

    def step(self, number: int, text: torch.Tensor) -> torch.Tensor:
        """Returns the loss of this rank's part of the batch."""
        loss = self.model(text)
        loss.backward()
        for name, master, parameter in zip(self.names, self.masters, self.parameters):
            master.grad = parameter.grad.float()
            if name in self.expert_names:
                master.grad.div_(self.job.size)
            parameter.grad = None
        warm_up = min(1.0, (number + 1) / self.config.warm_up)
        self.optimizer.param_groups[0]["lr"] = self.config.lr * warm_up
        self.optimizer.step()
        self.write_parameters()
        return loss.detach()

    @torch.no_grad()
    def write_parameters(self) -> None:
        for master, parameter in zip(self.masters, self.parameters):
            parameter.copy_(master)

    def moments(self, master: torch.Tensor) -> dict[str, torch.Tensor]:
        """AdamW's state of a master, made where there has been no step."""
        state = self.optimizer.state[master]
        if not state:
            fused = self.job.device.type == "cuda"
            state["step"] = torch.zeros((), device=master.device if fused else "cpu")
            state["exp_avg"] = torch.zeros_like(master)
            state["exp_avg_sq"] = torch.zeros_like(master)
        return state
