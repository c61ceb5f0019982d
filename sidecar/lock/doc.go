// Package lock serialises jobs that must not run side by side: jobs of one session, and jobs whose targets overlap.
// There is one table of held sets and one queue; a job takes all its keys at once or waits. Nobody ever holds some
// keys while waiting for others, so there is no deadlock and no lock order to know.
//
// # Guarantees
//
//   - G5: two holders never have conflicting keys; a waiter is never overtaken by a later one that conflicts with it
//     (TestScenarios/crossed, /fair).
//   - After a destroyed session's tombstone is durable none of its waiters is granted (TestScenarios/destroy).
//   - G7: the queue is bounded in all and for each session; beyond it the answer is [*BusyError], at once
//     (TestScenarios/full).
//   - A waiter that gives up after it was granted hands the keys on (TestScenarios/handOn).
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
// The package is a core: no goroutine, clock, context or I/O, primitives from internal/msync only. Scenarios are driven
// by calls; under the tag edamodel each guard can be switched off, and its scenario must then fail.
//
// # Sources
//
// POSIX has no lock over several files; Havender 1968, "Avoiding deadlock in multitasking systems" (all at once).
package lock
