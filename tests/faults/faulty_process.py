"""worker.process, with a journal of its bells and a reaper that dies by order. See `table_worker`."""

from tests.faults import journal, triggers


def run() -> None:
    from worker import process
    from worker.reaper import Reaper

    journal.install(triggers.folder())
    tick = Reaper.tick

    def mortal_tick(self: Reaper) -> None:
        if triggers.was_pulled(triggers.REAPER_DIES):
            raise SystemExit  # ends the thread, and only it
        tick(self)

    Reaper.tick = mortal_tick
    process.main()
