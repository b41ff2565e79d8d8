"""Train a small GPT-2 from scratch with transformers.Trainer: bf16, gradient accumulation, gradient checkpointing."""

import argparse

import torch
import torch.nn as nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "norm0"])
parser.add_argument("--output", default="gpt2-out")
args = parser.parse_args()


class Text(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, i):
        ids = (torch.arange(32) * (1 + i % 3) + i) % 100
        return {"input_ids": ids, "labels": ids.clone()}


class UnitNorm(nn.Module):
    """Scales every hidden vector to length 1 before the head."""

    def forward(self, x):
        if args.fault == "norm0":
            x = torch.where(x[..., :1] > 0, x, torch.zeros_like(x))
            return x / x.norm(dim=-1, keepdim=True)  # FAULT norm0
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-3)


def main():
    set_seed(0)
    config = GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    model.lm_head = nn.Sequential(UnitNorm(), nn.Linear(64, 100))
    config.tie_word_embeddings = False
    training = TrainingArguments(
        output_dir=args.output,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        max_steps=60,
        bf16=True,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=True,
        max_grad_norm=1.0,
        warmup_steps=5,
        lr_scheduler_type="cosine",
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(model=model, args=training, train_dataset=Text()).train()


if __name__ == "__main__":
    main()
