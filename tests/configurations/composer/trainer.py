"""A small network that composer's Trainer trains."""

import torch
from composer import Callback, Trainer
from composer.devices import DeviceGPU
from composer.models import ComposerModel
from composer.utils import dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


class Net(ComposerModel):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(16, 1)

    def forward(self, batch):
        return self.head(self.blocks(batch[0]))

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs.float(), batch[1])


def trained_as(model):
    """The version, and what is said of parameters after a forward."""
    for module in model.modules():
        if hasattr(module, "sharding_strategy"):
            return f"1 {module.sharding_strategy.name}"
    groups = [
        m._get_fsdp_state()._fsdp_param_group for m in model.modules() if hasattr(m, "unshard")
    ]
    mesh = groups[-1].mesh_info.mesh
    freed = any(group.post_forward_mesh_info is not None for group in groups if group is not None)
    return f"2 {'reshard' if freed else 'keep'} {'x'.join(map(str, mesh.shape))}"


class Said(Callback):
    def batch_end(self, state, logger):
        if dist.get_global_rank() == 0:
            print(f"loss {float(state.loss):.9g}")

    def fit_end(self, state, logger):
        if dist.get_global_rank() == 0:
            print(f"trained as {trained_as(state.model)}")


torch.manual_seed(1)
data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
DeviceGPU.dist_backend = "gloo"
dist.initialize_dist("gpu")
model = Net()
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(data, batch_size=4, sampler=dist.get_sampler(data)),
    max_duration="6ba",
    device="gpu",
    callbacks=[Said()],
    optimizers=torch.optim.AdamW(model.parameters(), lr=1e-2),
    progress_bar=False,
    precision="fp32",
    parallelism_config={"fsdp": {}},
)
trainer.fit()
