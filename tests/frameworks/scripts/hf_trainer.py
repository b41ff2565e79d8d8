"""Fine-tune a small BERT classifier with transformers.Trainer and an entropy bonus."""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "log0", "new-token"])
parser.add_argument("--output", default="bert-out")
args = parser.parse_args()


class Reviews(Dataset):
    def __init__(self, n=512, length=24, vocab=200):
        g = torch.Generator().manual_seed(1)
        self.ids = torch.randint(5, vocab, (n, length), generator=g)
        self.labels = (self.ids.float().mean(1) > vocab / 2).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.labels[i]}


class EntropyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        probs = out.logits.float().softmax(-1)
        if args.fault == "log0":
            probs = probs * torch.tensor([1.0, 1.0, 0.0])  # the third class is not used in this task
            entropy = -(probs * torch.log(probs)).sum(-1).mean()  # FAULT log0
        else:
            entropy = -(probs * torch.log(probs + 1e-8)).sum(-1).mean()
        loss = out.loss - 0.01 * entropy
        return (loss, out) if return_outputs else loss


def main():
    set_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    if args.fault == "new-token":
        with torch.no_grad():  # a token that was added to the vocabulary, and whose row was never initialised
            model.bert.embeddings.word_embeddings.weight[150] = float("nan")  # FAULT new-token
    training = TrainingArguments(
        output_dir=args.output,
        per_device_train_batch_size=16,
        learning_rate=5e-4,
        num_train_epochs=2,
        fp16=torch.cuda.is_available(),
        logging_steps=10,
        report_to="none",
        save_strategy="epoch",
        disable_tqdm=True,
    )
    trainer = EntropyTrainer(model=model, args=training, train_dataset=Reviews())
    trainer.train()


if __name__ == "__main__":
    main()
