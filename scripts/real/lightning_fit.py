"""Lightning's Trainer on a tiny model; with --gpu every step is timed by events."""

import logging
import sys
import warnings

import torch
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
import lightning  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
gpu = "--gpu" in sys.argv


class Timed(lightning.Callback):
    def on_train_batch_start(self, *_: object) -> None:
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.start.record()

    def on_train_batch_end(self, *_: object) -> None:
        self.end.record()
        self.end.synchronize()
        self.start.elapsed_time(self.end)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    max_epochs=2, accelerator="gpu" if gpu else "cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[Timed()] if gpu else [],
)  # fmt: skip
trainer.fit(Module(), DataLoader(TensorDataset(torch.ones(16, 8)), batch_size=4))
print(trainer.global_step, trainer.current_epoch)
