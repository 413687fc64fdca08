"""A client of soak.py: asks until it is killed, a line for each reply.

  python tests/serving/soak_client.py PORT SEED REQUESTS.json

It loads nothing but Python's own library, so it asks at once. A line is "ok", or
what is wrong with a reply.
"""

import http.client
import itertools
import json
import pathlib
import random
import sys
import time

ROUTE = "/v1/prm/score"
TOLERANCE = 1e-5


def fault(status, text, expected):
  """Returns what is wrong with a reply; "" if nothing is."""
  if status != 200:
    return f"status {status}: {text[:200]!r}"
  found = [entry["step_scores"] for entry in json.loads(text)["data"]]
  if [*map(len, found)] != [*map(len, expected)]:
    return f"{[*map(len, found)]} scores, not {[*map(len, expected)]}"
  pairs = zip(itertools.chain(*found), itertools.chain(*expected))
  off = max(abs(a - b) for a, b in pairs)
  return "" if off <= TOLERANCE else f"a score is {off} off"


def main():
  port, seed, path = sys.argv[1:]
  requests = json.loads(pathlib.Path(path).read_text())
  draw = random.Random(int(seed))
  connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
  while True:
    body, expected = draw.choice(requests)
    connection.request("POST", ROUTE, body)
    reply = connection.getresponse()
    print(fault(reply.status, reply.read(), expected) or "ok", flush=True)
    time.sleep(draw.random() * 0.05)


if __name__ == "__main__":
  main()
