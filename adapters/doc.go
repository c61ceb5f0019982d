// Package adapters knows EDA programs: it turns typed arguments into commands that cannot be subverted, and finished processes into
// judgements that can be trusted. The engine decodes a call's arguments with a Tool, binds its outputs to slots, runs the steps of the
// Invocation that Prepare returns, and lets Judge decide. A Tool is data and four pure functions; the built-in ones have a file each
// (yosys.go, iverilog.go), declared.go makes one of a configuration, command.go of what an operator typed.
//
// # Guarantees
//
//   - An exit code is an input, not a verdict: ok needs exits that the plan lets pass, no error in the log, whole outputs of their kinds, and
//     what was asked for in them (G4). TestRealRuns, TestControls.
//   - A validator accepts no proper prefix of a file, no zero-filled tail, and reads to the last byte; the comments of the kinds name the
//     exceptions. TestValidators.
//   - No text of a caller reaches a program's language unless its parameter makes it harmless: inputs are plain names, text has a pattern,
//     control characters are refused with their place. TestOddNames, TestControlCharacters, TestQuoting, TestPlainNamesRequired.
//   - Equal arguments give equal plans. TestPlanTwice, FuzzDecode.
//   - What a caller sees names targets and workspace paths, no slot and no job. TestMapper, TestMappingNeeded.
//   - Memory does not grow with a log, a line or an output: blocks of 64 KiB (of JSON: one token, at most 16 MiB), 200 diagnostics, 64 KiB of
//     data. TestLongLine, TestLongToken, TestBounds (G7).
//   - A declared tool passes the checks of a built-in one, or all its mistakes are said at once. TestDeclaredRefuses, TestDeclaredProof.
//
// # Not guaranteed
//
// A design that prints the text of a message can make a run fail, or name a line that is not there; it cannot make one succeed that a
// program ended with an error. VCD has no trailer: a cut at the end of a line goes unseen. A text file is whole when it ends with a newline.
// A Verilog netlist cut between two modules is noticed by its top module alone. Paths are checked for syntax here; whether they exist, and
// where they lead, is the transaction's question. Trust is about intent, no sandbox.
//
// # Concurrency
//
// Tools, Catalogs, Args and Mappers are immutable and may be used by any number of goroutines. The package starts none, and knows no clock.
//
// # Failure
//
// Before anything starts: ErrArgument (each an *ArgumentError), ErrConfig. When programs are looked up: ErrVersionUnreadable, ErrTooOld.
// About outputs, as Faults: ErrMissing, ErrNotWhole, ErrLogCut. "internal error" is a mistake in an adapter. Nothing is ever changed on disk.
//
// # Testing
//
// A caller's test makes a Tool with Command, or of a configuration with Declared, and gives Judge an fstest.MapFS rooted at the job directory
// with s0/ and work/ in it. The goldens in testdata are rewritten with -update; they are of yosys 0.23 and Icarus Verilog 11.0.
//
// # Sources
//
// Measured behaviour of the programs (Debian 12); IEEE 1364-2005 clause 18 (VCD); RFC 8259 (JSON), RFC 7396 (merge
// patch); yosys kernel/log.cc; Icarus Verilog ivl and vvp.
package adapters
