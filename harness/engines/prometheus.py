"""Counters of a server in the text format of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Mapping

from stridebench.harness.core.engine import Counters, EngineFault
from stridebench.harness.platform.extras import optional


def read_counters(text: str, names: Mapping[str, str], position: str = "") -> Counters:
    """The counters of acceptance in what a server exports; those of several labels are added up.

    Args:
        text: of the server's endpoint.
        names: the sample's name of each field: output_tokens, draft_steps, drafted, accepted.
        position: the name of the counter that has a label ``position``; "": none.

    Raises:
        EngineFault: the text cannot be parsed, or a counter is NaN or infinite.
    """
    parser = optional("prometheus_client.parser", "reading a server's counters", "engines")
    fields = {name: key for key, name in names.items()}
    values: dict[str, float] = {}
    places: dict[int, float] = {}
    try:
        samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
        chosen = [sample for sample in samples if sample.name in fields or (position and sample.name == position)]
        places_of = [int(sample.labels.get("position", 0)) for sample in chosen]
    except (ValueError, KeyError, IndexError) as error:
        raise EngineFault("malformed", f"the server's counters cannot be read: {error}") from error
    for sample, place in zip(chosen, places_of, strict=True):
        if not math.isfinite(sample.value):
            raise EngineFault("not_a_number", f"the counter {sample.name} is {sample.value}")
        if sample.name == position:
            places[place] = places.get(place, 0.0) + sample.value
        else:
            key = fields[sample.name]
            values[key] = values.get(key, 0.0) + sample.value
    return Counters(values, places)
