// Package lock serialises jobs that must not run side by side: jobs of one session, and jobs whose targets overlap.
// There is one table of held sets and one queue; a job takes all its keys at once or waits. Nobody ever holds some
// keys while waiting for others, so there is no deadlock and no lock order to know.
//
// # Guarantees
//
// Under every schedule, each with the test of the model that shows it and of the guard that it needs:
//
//   - G5: two holders never have conflicting keys (TestCrossed, TestGrantOverlap; TestOverlap); a waiter is never overtaken
//     by a later one that conflicts with it (TestOrder, TestOvertake).
//   - After a destroyed session's tombstone is durable nobody is granted its key (TestDestroyed, TestSkipDestroyedRecheck;
//     TestWaitersOfDestroyed, TestFailOnlyFirstWaiter).
//   - G7: the queue is bounded in all and for each session; beyond it the answer is [*BusyError], at once (TestBounds,
//     TestBusy). Who gives up leaves no place taken (TestFullQueue, TestSlotLeak).
//   - A waiter that gives up after it was granted hands the keys on (TestGrantRacingCancel, TestLoseHandOn); one that
//     gives up before is in nobody's way (TestGiveUp, TestForgetBehind).
//
// # Not guaranteed
//
// That a path key still names what it named when it was made: the caller resolves its targets again after the grant.
//
// # Concurrency
//
// All methods may be called at once. One mutex, held for no I/O and no callback; waiting is on a close-only channel.
//
// # Failure
//
// [ErrCancelled] and [ErrDestroyed] leave nothing held and nothing queued. [*BusyError] never queued anything.
//
// # Testing
//
// The package is a core: no goroutine, clock, context or I/O, primitives from internal/msync only. Under the tag edamodel
// its models run under every schedule, each guard can be switched off, and a model must then fail. docs/verification.md
// says how to read that. TestRace is for the race detector, which sees nothing in models.
//
// # Sources
//
// POSIX has no lock over several files; Havender 1968, "Avoiding deadlock in multitasking systems" (all at once).
package lock
