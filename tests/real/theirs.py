"""What transformers makes of published weights: theirs.py FOLDER FILE DTYPE.

The file has {"texts": [[id, ...], ...]}; prints the log-probability of every id
but the first, and how far its logit is below the largest, as one line of JSON.
"""

import json
import pathlib
import sys

import torch
import transformers


def main(folder: str, path: str, dtype: str) -> None:
  torch.set_num_threads(1)
  transformers.logging.set_verbosity_error()
  model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=getattr(torch, dtype)
  ).eval()
  log_probs, below = [], []
  for ids in json.loads(pathlib.Path(path).read_text())["texts"]:
    with torch.no_grad():
      logits = model(torch.tensor([ids])).logits[0, :-1].float()
    chosen = torch.tensor(ids[1:])[:, None]
    log_probs.append(logits.log_softmax(-1).gather(-1, chosen)[:, 0].tolist())
    gap = logits.max(-1).values - logits.gather(-1, chosen)[:, 0]
    below.append(gap.tolist())
  print(json.dumps(dict(log_probs=log_probs, below=below)))


if __name__ == "__main__":
  main(*sys.argv[1:])
