// Package codec frames JSON-RPC messages by newlines, as MCP's stdio transport does, and bounds their sizes. What is too
// large is skipped and answered under its own id, what is malformed is answered, and the connection goes on. The bounds
// are small until the peer has read the catalogue and larger from then on; a Gate hands them from the writer of that
// answer to the reader of the next call. Its middle is one pointer, so that no schedule shows half of a change.
//
// # Guarantees
//
//   - A peer that sends a large call only after it has read the answer that allows it is never refused, if Enter was called
//     before that answer was written (TestHandOff under every schedule; TestSkipBoundPublication,
//     TestPublishBoundLate, TestLoadBeforeFirstByte).
//   - Phase and bounds that are seen together belong together (TestHandOff, TestTwoStores).
//   - G7: of a message, no more bytes are kept than its bound; of one over the bound, its id. After 64 MiB without a newline
//     the input ends (TestConstantMemory, FuzzFrame).
//   - The id in the answer to a skipped message is the one that it has, wherever it stands, or null (TestDecoder, FuzzFrame).
//   - However the input is cut into reads, the frames are the same (FuzzFrame).
//   - A Raw message is one JSON object in UTF-8 that means the same to every reader: no name twice, no id that a
//     float64 changes, nesting of at most 64 (TestDecoder).
//   - A message goes out whole and alone on its line, or not at all (TestEncoder, TestWritersTakeTurns).
//
// # Not guaranteed
//
// That a Raw message is a JSON-RPC request. That an id is right if the skipped message was malformed besides: then only
// its brackets and strings were followed. Time: a core has no clock. The owner of the input bounds the time from the
// first byte of a message to its last in its own Read, which learns from [Decoder.Partial] whether it is within one.
//
// # Concurrency
//
// Gate and Encoder may be used at once; a Decoder by one goroutine. Encoder.Write holds its mutex while the writer
// beneath writes: the lock is what keeps messages whole, and the bound on that time is the writer's.
//
// # Failure
//
// [Decoder.Next] fails once and for all: io.EOF, io.ErrUnexpectedEOF within a message, or the reader's error. A message
// that is refused is a [Frame], no error. [Encoder.Write] returns a [*TooLarge] for a message of ours over the bound,
// whose receiver was given an internal error instead, and goes on; after any other error it writes nothing more.
//
// # Testing
//
// Over any io.Reader and io.Writer. The package is a core: no goroutine, clock, context or descriptor, primitives from
// internal/msync only. Under the tag edamodel its model runs under every schedule, each guard can be switched off, and the
// model must then fail (docs/verification.md).
//
// # Sources
//
// MCP 2026-07-28, transports, stdio; JSON-RPC 2.0 sections 4 and 5.1; RFC 8259.
package codec
