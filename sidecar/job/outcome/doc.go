// Package outcome decides, exactly once, how a job ends: whoever is first of cancel, deadline, destroy and publication
// wins, by one compare-and-swap of one word.
//
// # Guarantees
//
//   - One terminal outcome, and its cause is the winner's: [Cell.Abort] returns true exactly if it aborted the job
//     (TestScenarios/abortWins, /publishWins).
//   - Nothing is published after an abort won: [Cell.BeginPublish] is the last point where an abort can win (G2).
//   - A kill handle that is registered too late is not lost: [Cell.Register] re-checks in the critical section in which
//     it installs (TestScenarios/lateRegistration).
//   - Keys are released once, and never while death is unproven, a commit in doubt or an undo unfinished (G3:
//     TestScenarios/unproven).
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
// each guard can be switched off, and its scenario must then fail.
//
// # Sources
//
// The protocol of 12 steps in package job.
package outcome
