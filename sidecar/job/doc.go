// Package job runs one call as one job: [Runner.Run] is the protocol of the engine, one function that reads top to
// bottom. It starts the tool in its own group on a clone of the session's state and with outputs redirected to private
// staging, proves the group empty, has the outputs judged, publishes them and commits; in every other case it proves the
// group empty all the same and undoes.
//
// # Guarantees
//
//   - G1: no answer before every group of the call is proven empty; else the answer is TERMINATION_UNPROVEN and nothing
//     is published, deleted or unlocked (TestUnproven).
//   - G2, G3: outputs, session state and the audit record change together or not at all; a commit whose durability is not
//     known is COMMIT_IN_DOUBT (TestLateAnswers; package sidecar: TestFates).
//   - G4: exit 0 publishes nothing unless the staged outputs are whole (TestExitZeroIsNotSuccess).
//   - G5: keys are taken all at once (TestSerialised) and released only after a final, durable end; nobody hears that a
//     session is destroyed before it is (TestDestroyRacesQueued).
//   - A cancel wins until publication begins, and not after it (TestCancelAnywhere); a deadline binds the group, not its
//     leader (TestDeadlineOfTheGroup).
//   - One mapping from an error to a [Code]: the first error decides, whatever the undo meets (TestFirstErrorDecides).
//
// # Not guaranteed
//
// That a cancelled call has no effect if the cancel came after publication began: it then ends in a commit or an undo,
// and says which.
//
// # Concurrency
//
// A Runner may run many calls at once, each in the goroutine of its caller. The undo does not end with the caller's
// context; one that waits for room goes on behind the answer until Close.
//
// # Failure
//
// Run returns a [Result] in every case; its Code, Phase, RolledBack and WorkerTerminated say what is true on disk.
//
// # Testing
//
// Groups and Metrics are interfaces; the rest is real: files, ledger, locks. Package main's scripts drive the whole.
//
// # Sources
//
// The design's "way of a mutating call"; the numbers in Run are its steps.
package job
