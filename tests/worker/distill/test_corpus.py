"""The prompts a drafter is trained on."""

import re

import pytest

from worker.distill.corpus import prompts
from worker.distill.corpus.prompts import items, template_kinds, training_prompts


def test_they_are_distinct_and_as_many_as_asked_for():
    drawn = training_prompts(3000, seed=1)
    assert len(drawn) == len(set(drawn)) == 3000


def test_a_seed_decides_them():
    assert training_prompts(300, seed=1) == training_prompts(300, seed=1)
    assert set(training_prompts(300, seed=1)) != set(training_prompts(300, seed=2))


def test_fewer_of_a_seed_are_the_first_of_more():
    assert training_prompts(300, seed=1)[:100] == training_prompts(100, seed=1)


def test_they_are_of_many_kinds():
    kinds = template_kinds()
    assert len(kinds) >= 75
    assert sum(len(templates) for templates in kinds.values()) >= 700
    assert len(items("topic")) >= 1500
    assert len(items("passage")) >= 100


def test_every_slot_has_a_list_without_blanks_or_repeats():
    templates = "\n".join(items("template"))
    names = {word.lower() for word in re.findall(r"\{([A-Za-z]+)\d?\}", templates)}
    assert len(names) >= 30
    for name in names | {"template"}:
        assert len(items(name)) == len(set(items(name))), f"{name}.txt says something twice"
        assert all(item and item == item.strip() for item in items(name)), f"{name}.txt has an empty item"


def test_a_slot_used_twice_is_one_item_and_a_numbered_one_is_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompts, "template_kinds", lambda: {"talk": ("{name}, {name} and {name2} met",)})
    first, second, third = training_prompts(1, seed=3)[0].replace(" met", "").replace(" and", ",").split(", ")
    assert first == second != third


def test_asking_for_more_than_there_are_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompts, "template_kinds", lambda: {"greeting": ("Hello!", "Good evening.")})
    with pytest.raises(ValueError, match="2 distinct prompts, fewer than 3"):
        training_prompts(3, seed=1)
