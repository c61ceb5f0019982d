// Package sidecar assembles the engine on one workspace: it opens the volume, takes the owner lock, opens the ledger,
// recovers what an earlier process left, and hands out a runner.
//
// # Guarantees
//
//   - G5: one owner a workspace, by a lock that the kernel frees (TestOwned).
//   - G8: without containment no tool runs, without a durable ledger no mutating one (cmd: refused.txtar).
//   - G9: [Open] returns only after every job of an earlier process is proven dead or confined, and rolled back or
//     forward; what cannot be proven or recognised keeps its keys (TestRecover, TestConfined, TestUnprovenAtStart,
//     TestRestored, TestKilledAnywhere).
//
// # Not guaranteed
//
// That a quarantined job is decided: that needs an operator.
//
// # Concurrency
//
// A Sidecar may be used by many goroutines; Open and Close by one.
//
// # Failure
//
// Open returns a *job.Error with the code that the command ends with; then nothing is held.
//
// # Testing
//
// Tests open a real workspace in a temporary directory, as root, with real groups.
//
// # Sources
//
// The start-up order is the design's, step by step; see Open.
package sidecar
