"""Lightning's Trainer on a tiny model."""

import logging
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
import lightning  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Module(), DataLoader(TensorDataset(torch.ones(16, 8)), batch_size=4))
print(trainer.global_step, trainer.current_epoch)
