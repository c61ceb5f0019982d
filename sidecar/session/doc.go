// Package session says what a session's state is: vars that tools declare, the artifacts that its jobs published, the
// last result of each tool. A job clones the state, runs, and applies its delta; the ledger stores the result in the
// same transaction as the job's commit. Who owns a session, its generation and its tombstone are the ledger's. Pure.
//
// # Guarantees
//
// Apply changes nothing but what the delta may (TestApplyRefusesUndeclared), leaves its receiver alone
// (TestApplyLeavesItsReceiver) and keeps every limit (TestLimits). The merge is RFC 7396 (its appendix A is a test).
// Decode accepts no doubled or unknown member.
//
// # Not guaranteed
//
// That artifacts are still at their targets: others may write there.
//
// # Concurrency
//
// Values. A State must not be changed while another goroutine reads it.
//
// # Failure
//
// ErrKey, ErrLimit and ErrState; nothing has changed after any.
//
// # Testing
//
// Used as it is.
//
// # Sources
//
// RFC 7396, JSON Merge Patch; RFC 8259 section 4.
package session
