"""docs/commands.md is what the verbs declare."""

import make_commands

from prm_jax.cli import commands
from prm_jax.cli import flags


def test_the_page_is_what_the_verbs_declare():
  page = make_commands.PAGE.read_text()
  assert page == make_commands.page(), "run: python docs/make_commands.py"


def test_each_command_has_all_its_options_on_the_page():
  sections = dict(
    part.split("\n", 1)
    for part in make_commands.page().replace("\n### ", "\n## ").split("\n## ")
  )
  kinds = {
    f"{name} {kind}": (name, verb)
    for name, (_, of_name) in commands.KINDS.items()
    for kind, verb in of_name.items()
  }
  whole = {x: ("", verb) for x, verb in commands.VERBS.items()} | kinds
  for command, (parent, verb) in whole.items():
    text = sections[f"prm-jax {command}"]
    for option in flags.options(verb).values():
      word = f"`{option.words[0]}`"
      is_shared = f"[{option.group}](#" in text
      home = sections[option.group.capitalize()] if is_shared else text
      assert word in home, (command, word)
      if f"| {word}" not in home:
        assert f"| {word}" in sections[f"prm-jax {parent}"], (command, word)
