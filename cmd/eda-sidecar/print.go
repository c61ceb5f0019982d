package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// printError says what a command could not do, and what to do about it: on stderr, and with --json as an answer like any
// other on stdout. A result that was printed already says it all.
func printError(c *cobra.Command, err error) {
	var printed *silentError
	if errors.As(err, &printed) {
		return
	}
	failed := asJobError(err)
	text := failed.Error()
	if !strings.HasPrefix(text, "cannot ") {
		text = "cannot " + text
	}
	if asJSON, flagErr := c.Flags().GetBool("json"); flagErr == nil && asJSON {
		answer := struct {
			Code    job.Code `json:"code"`
			Message string   `json:"message"`
			Hint    string   `json:"hint"`
		}{failed.Code, text, failed.Advice()}
		_ = printJSON(c.OutOrStdout(), answer) // stderr says it too
	}
	c.PrintErrf("eda-sidecar: %s\nhint: %s\n", printable(text), failed.Advice())
}

// asJobError gives an error without a code the code of where it comes from: a stream that cannot be written, or the
// command line.
func asJobError(err error) *job.Error {
	var failed *job.Error
	var stream *fs.PathError
	switch {
	case errors.As(err, &failed):
		return &job.Error{Code: failed.Code, Err: err}
	case errors.As(err, &stream) && stream.Op == "write":
		return &job.Error{Code: job.Internal, Op: "write the answer (what was done is in the audit trail)", Err: err}
	}
	return &job.Error{Code: job.InvalidArgument, Op: "understand the command line", Err: err}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printResult prints a result for machines or for people, and returns the error that carries its exit code.
func printResult(w, errs io.Writer, r job.Result, asJSON bool) error {
	if asJSON {
		if err := printJSON(w, r); err != nil {
			return err
		}
	} else if err := printHuman(w, errs, r); err != nil {
		return err
	}
	if r.Code == job.OK {
		return nil
	}
	return &silentError{exitOf(r.Code)}
}

// printHuman says what was done on stdout, what went wrong on stderr.
func printHuman(w, errs io.Writer, r job.Result) error {
	took := (time.Duration(r.Duration) * time.Millisecond).Round(10 * time.Millisecond)
	var text strings.Builder
	for _, d := range r.Diagnostics {
		text.WriteString("  " + diagnostic(d) + "\n")
	}
	if r.Code != job.OK {
		if tail := lastLines(r.Log, 10); tail != "" && len(r.Diagnostics) == 0 {
			text.WriteString(indent(tail))
		}
		fmt.Fprintf(&text, "eda-sidecar: %s\n%s after %v: %s\nhint: %s\n", printable(r.Message), r.Code, took, evidence(r), r.Hint)
		_, err := io.WriteString(errs, text.String())
		return err
	}
	done := "committed"
	if r.Phase == "" {
		done = "read"
	}
	fmt.Fprintf(&text, "%s: %s, verdict %s, in %v: %s\n", r.Tool, done, r.Verdict, took, printable(r.Summary))
	for _, o := range r.Outputs {
		if o.Absent {
			fmt.Fprintf(&text, "  %s: not written, %s is as it was\n", o.Name, o.Path)
			continue
		}
		fmt.Fprintf(&text, "  %s: %s (%d bytes, sha256 %.12s)\n", o.Name, o.Path, o.Bytes, o.SHA256)
	}
	fmt.Fprintf(&text, "  job %s: %s\n", r.Job, evidence(r))
	_, err := io.WriteString(w, text.String())
	return err
}

// evidence says in words what is true after the call.
func evidence(r job.Result) string {
	var parts []string
	switch {
	case !r.WorkerTerminated:
		parts = append(parts, "NOT proven dead")
	case !r.Started:
		parts = append(parts, "no tool was started")
	default:
		parts = append(parts, "process tree proven dead")
	}
	if r.DescendantsKilled > 0 {
		parts = append(parts, fmt.Sprintf("%d descendants killed", r.DescendantsKilled))
	}
	switch {
	case r.Code == job.OK && r.Session != "":
		parts = append(parts, fmt.Sprintf("session %s at version %d", r.Session, r.SessionVersion))
	case r.Code == job.OK:
	case r.RolledBack:
		parts = append(parts, "nothing has changed")
	default:
		parts = append(parts, "the undo is NOT finished: keys stay held")
	}
	return strings.Join(parts, ", ")
}

func diagnostic(d adapters.Diagnostic) string {
	where := ""
	if d.File != "" {
		where = d.File + ":"
		if d.Line > 0 {
			where += fmt.Sprintf("%d:", d.Line)
		}
		where += " "
	}
	return fmt.Sprintf("%s%s: %s", where, d.Severity, printable(d.Message))
}

// lastLines returns the last n lines of what the tool printed.
func lastLines(l job.Log, n int) string {
	text := l.Head
	if l.Tail != "" {
		text = l.Tail
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}

func indent(text string) string {
	return "  | " + strings.ReplaceAll(printable(text), "\n", "\n  | ") + "\n"
}

// printable keeps a tool's output from driving the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= 0x20 && r != 0x7f && (r < 0x80 || r > 0x9f) {
			return r
		}
		return '?'
	}, text)
}
