// Package batch decides which operations of the ledger go into one transaction and what becomes of each: group commit
// as a core. Callers put operations, one writer calls Round in a loop, and while one COMMIT syncs the next batch
// gathers. There is no goroutine, clock, context or I/O here: the store is a value that is handed in, the shell waits.
//
// # Guarantees
//
//   - Every ticket is answered exactly once, in the order of Put, and Durable only after a COMMIT that held its
//     operation returned nil (G2, G3; TestFates; TestPutRacingRound, TestAckLateRider, TestCloseRacingPut).
//   - An operation that is refused leaves its neighbours alone; a COMMIT that fails fails all of them (TestFates;
//     TestRefusedAmongRiders, TestRefuseWholeBatch, TestTwoPutters, TestFailOnlyFirst).
//   - After a COMMIT whose fate is unknown no statement is sent any more (TestPoison; TestUnknownLatches,
//     TestCommitAfterPoison).
//   - Events are legal in apply order; an order that a failed transaction took back is taken back here too (TestOrders;
//     TestAbsentThenUndo, TestAutomatonNotRestored).
//   - Sinks see durable events only, before the answer is given (TestSinks; TestSinkBeforeDurable).
//   - No put is forgotten by the channel that Round returns (TestWake; TestIdleWakeUp, TestLoseWakeup). The queue is bounded
//     (G7; TestBounds).
//
// # Not guaranteed
//
// That an operation can be withdrawn: put the opposite behind it.
//
// # Concurrency
//
// Put, Flush, Close, Poison and the methods of a Ticket may be called at once; Round by one goroutine. No lock is held
// while the store or a sink runs.
//
// # Failure
//
// Put: ErrFull, ErrPoisoned, ErrClosed; nothing was done. A ticket: Refused, Absent and Unknown, with Err.
//
// # Testing
//
// With a scripted Store. Under the tag edamodel its models run under every schedule with every answer of the store, each
// guard can be switched off, and a model must then fail (docs/verification.md).
//
// # Sources
//
// DeWitt and others, "Implementation Techniques for Main Memory Database Systems", SIGMOD 1984 (group commit);
// Rebello and others, "Can Applications Recover from fsync Failures?", USENIX ATC 2020.
package batch
