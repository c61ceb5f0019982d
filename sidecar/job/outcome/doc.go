// Package outcome decides, exactly once, how a job ends: whoever is first of cancel, deadline, destroy and publication
// wins, by one compare-and-swap of one word.
//
// # Guarantees
//
// Under every schedule, each with the test of the model that shows it and of the guard that it needs:
//
//   - One terminal outcome, and its cause is the winner's: [Cell.Abort] returns true exactly if it aborted the job
//     (TestCompletionRacingAll, TestCheckThenActAbort; TestAbortAfterEnd).
//   - Nothing is published after an abort won: [Cell.BeginPublish] is the last point where an abort can win (G2:
//     TestControlledWindow, TestSkipFinalCheck, TestCheckThenActPublish).
//   - A kill handle that is registered too late is not lost: [Cell.Register] re-checks in the critical section in which
//     it installs (TestHungWorker, TestSkipCancelGuard, TestHandleOutsideLock).
//   - Keys are released once, and never while death is unproven, a commit in doubt or an undo unfinished (G3: TestFaults,
//     TestReleaseUnproven, TestSkipReleaseOnFinal; TestLateAnswer, TestReleaseTwice).
//   - A job that was handed over does not end with its caller (TestHandOver, TestDetachWithoutCAS), and one of several callers
//     ends with the last (TestCallers, TestAbandonWithFirst, TestJoinTheAbandoned). No call is inside a gate that was drained
//     (TestDrain, TestGateAddAfterDrain).
//
// # Not guaranteed
//
// That a kill handle kills: the job proves death itself, whatever was signalled.
//
// # Concurrency
//
// All methods may be called at once. No handle is called while the mutex is held.
//
// # Failure
//
// Calls in an order that the job's protocol does not have are refused by a false result, never half applied.
//
// # Testing
//
// The package is a core: no goroutine, clock, context or I/O, primitives from internal/msync only. Under the tag edamodel
// its models run under every schedule, each guard can be switched off, and a model must then fail. docs/verification.md
// says how to read that. TestRace is for the race detector, which sees nothing in models.
//
// # Sources
//
// The protocol of 12 steps in package job.
package outcome
