// Package audit says what an audit event is: its kinds, the orders in which a job's events are legal, its stored form
// and the hash chain through all of them. The ledger writes events and asks this package what may be written; whoever
// reads the trail asks it what is right. Everything here is pure: no file, clock or goroutine.
//
// # Guarantees
//
// A job's events follow the table of legal orders ([Order], TestOrders). What Encode wrote, Decode gives back, and
// nothing else is accepted (FuzzBody). Any row that is edited, dropped, doubled or moved is named ([Verifier],
// TestVerifierNamesTheFirst, FuzzAudit).
//
// # Not guaranteed
//
// That nobody rewrote the whole trail and its hashes: keep a [Head] elsewhere. That reads and mutating jobs are told
// apart: the table is the union of their orders, so a rollback of a read is legal here.
//
// # Concurrency
//
// Values without locks. A Verifier belongs to one goroutine.
//
// # Failure
//
// ErrOrder and ErrEvent when an event is added: nothing was changed. ErrEvent and *Fault when the trail is read.
//
// # Testing
//
// Used as it is.
//
// # Sources
//
// CloudEvents 1.0 and its JSON format and sequence extension; RFC 3339; RFC 8259 section 4 (names should be unique).
package audit
