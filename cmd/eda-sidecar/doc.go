// Command eda-sidecar runs EDA tools as transactions: contained in a cgroup, proven dead, published whole or not at all.
//
// # Guarantees
//
//   - A result is printed once, on stdout if the call succeeded and always with --json; all else goes to stderr.
//   - The exit status is a function of the result's code (TestExitCodes).
//   - SIGINT, SIGTERM, SIGHUP and SIGQUIT cancel the call: it is killed, proven dead and rolled back first (signals.txtar).
//
// # Not guaranteed
//
// That two commands can own one workspace at once: the second ends with 75.
//
// # Concurrency
//
// One command, one call.
//
// # Failure
//
// Every error says what could not be done, to what, why, and what to do about it.
//
// # Testing
//
// The test binary is the program: test/scripts drives it as a user does.
//
// # Sources
//
// sysexits.h, timeout(1), and the table of codes in package sidecar/job.
package main
