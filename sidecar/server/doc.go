// Package server is the MCP front door of one engine: it decodes, authorises and validates a call, hands it to package job,
// waits for a bounded time, and maps the outcome to MCP in one file. It decides nothing about files, processes or outcomes.
// Two eras of the protocol are served on one endpoint: the stateless one of 2026-07-28 and the ones with a handshake.
//
// # Guarantees
//
//   - G1: a call that is cancelled, in the way of its era, is answered, if at all, after its processes are proven dead
//     (TestCancel).
//   - G7: bodies, open calls, MCP sessions and answers are bounded: an answer has at most 20,000 characters, whatever was
//     printed (TestBudget, TestRefusals).
//   - What an answer says is the job's result, in the published schema (TestEveryTool).
//   - Nobody sees, waits for or cancels what is another principal's, nor learns that it exists (TestOwnership).
//   - A stream is never silent for longer than 15 s (TestKeepAlive); a DELETE ends what its MCP session started (TestDelete).
//   - A job that is handed over outlives its call; one whose caller cannot have learnt its id does not (TestLongCall).
//
// # Not guaranteed
//
// That a caller which goes away without cancelling cancels its job in the eras with a handshake: the protocol forbids it.
//
// # Concurrency
//
// A Server's methods may be called at once. Each call has a goroutine of the SDK's, the job one of its own.
//
// # Failure
//
// No outcome of a tool is an error of the protocol. New fails for a tool that has the name of one of the server's own.
//
// # Testing
//
// The tests drive the real engine with the SDK's own client over HTTP, on a pipe and in memory.
//
// # Sources
//
// Model Context Protocol, revisions 2026-07-28 and 2025-11-25; RFC 6750 (bearer tokens); RFC 9110 section 15.5.
package server
