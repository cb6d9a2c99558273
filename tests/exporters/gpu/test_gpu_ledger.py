"""What is remembered of cards that move, disappear and were never seen."""

from __future__ import annotations

from k3observe.exporters.gpu.ledger import HARDWARE_XIDS, MORE_XIDS, Ledger
from k3observe.exporters.gpu.reading import DEADLINE
from k3observe.exporters.gpu.sample import CardReading, Identity, Sample


def _reading(index: int, uuid: str, *errors: str) -> CardReading:
    return CardReading(uuid, (Sample(Identity(str(index), uuid, uuid), temperature=40, errors=errors),))


def _ledger(*uuids: str, devices: tuple[str, ...] | None = None) -> Ledger:
    ledger = Ledger(devices)
    ledger.listed(len(uuids), "580")
    for index, uuid in enumerate(uuids):
        ledger.read(index, _reading(index, uuid), now=1)
    return ledger


def _served(ledger: Ledger) -> dict[str, str]:
    return {view.identity.uuid: view.identity.device for view in ledger.view().devices if view.sample}


def test_a_card_that_moves_to_the_slot_of_a_vanished_one_is_never_served_twice() -> None:
    ledger = _ledger("A", "B", "C")
    ledger.listed(2, "580")
    assert _served(ledger) == {"A": "0", "B": "1"}
    ledger.read(1, _reading(1, "C"), now=2)
    assert _served(ledger) == {"A": "0", "C": "1"}
    assert [(view.identity.uuid, view.success) for view in ledger.view().devices] == [
        ("A", True), ("B", False), ("C", True)]
    assert ledger.view().visible == 2


def test_a_reading_of_a_slot_that_is_not_listed_any_more_is_not_noted() -> None:
    ledger = _ledger("A", "B")
    ledger.listed(1, "580")
    assert ledger.read(1, _reading(1, "B"), now=2) is None
    assert ledger.failed(1, "unknown") is None
    assert _served(ledger) == {"A": "0"}


def test_a_detached_driver_leaves_no_value_and_no_count() -> None:
    ledger = _ledger("A")
    ledger.detached()
    view = ledger.view()
    assert (view.visible, view.settled, view.devices[0].success, view.devices[0].sample) == (None, False, False, None)


def test_counters_of_a_card_survive_a_detached_driver() -> None:
    ledger = _ledger("A")
    ledger.watching("A")
    ledger.heard("A", 79)
    ledger.failed(0, "gpu_is_lost")
    ledger.detached()
    ledger.listed(1, "580")
    ledger.watching("A")
    ledger.read(0, _reading(0, "A"), now=3)
    device = ledger.view().devices[0]
    assert (dict(device.errors)["gpu_is_lost"], dict(device.xids)["79"]) == (1, 1)


def test_xids_beyond_the_known_ones_are_bounded() -> None:
    ledger = _ledger("A")
    ledger.watching("A")
    for xid in range(1000, 1050):
        ledger.heard("A", xid)
    xids = dict(ledger.view().devices[0].xids)
    assert len(xids) == len(HARDWARE_XIDS) + MORE_XIDS + 1
    assert xids["other"] == 50 - MORE_XIDS


def test_a_named_card_may_be_the_one_that_hangs_and_has_not_told_its_uuid() -> None:
    ledger = Ledger(("B", "D"))
    ledger.listed(3, "580")
    ledger.read(0, CardReading("A", ()), now=1)
    assert ledger.view().visible is None
    ledger.failed(1, DEADLINE)
    ledger.failed(2, "gpu_is_lost")
    assert ledger.view().visible == 1
    assert {(view.identity.uuid, view.success) for view in ledger.view().devices} == {("B", False), ("D", False)}


def test_all_cards_lost_means_that_the_attachment_is() -> None:
    ledger = _ledger("A", "B")
    ledger.failed(0, "unknown")
    assert not ledger.all_lost()
    ledger.failed(1, "unknown")
    assert ledger.all_lost()
