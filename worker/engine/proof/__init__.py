"""What drafting brings, measured within the job: now and then all rows run plain for a block of steps."""

from worker.engine.proof.comparing import Arm, Comparison
from worker.engine.proof.watching import Proof

__all__ = ["Arm", "Comparison", "Proof"]
