package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/sidecar/ledger"
)

func newAudit() *cobra.Command {
	var q ledger.Query
	var kind, since, until string
	var asJSON, follow bool
	c := &cobra.Command{
		Use:     "audit",
		Short:   "Print the audit trail",
		Long:    "Prints the events of the audit trail, oldest first. It may run beside a live engine.",
		Example: "  eda-sidecar audit --kind commit --since 1h",
		Args:    cobra.NoArgs,
	}
	flags := workspaceFlags(c)
	c.Flags().StringVar(&q.Job, "job", "", "events of this job alone")
	c.Flags().StringVar(&q.Session, "session", "", "events of this session id alone")
	c.Flags().StringVar(&kind, "kind", "", "events of this kind alone")
	_ = c.RegisterFlagCompletionFunc("kind", func(*cobra.Command, []string, string) (words []string, d cobra.ShellCompDirective) { // the flag exists
		for _, k := range audit.Kinds() {
			words = append(words, string(k))
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	})
	c.Flags().StringVar(&since, "since", "", "events from this time on: RFC 3339, or how long ago, such as 2h")
	c.Flags().StringVar(&until, "until", "", "events before this time: RFC 3339, or how long ago")
	c.Flags().BoolVar(&asJSON, "json", false, "print CloudEvents, one a line, with prevhash and hash")
	c.Flags().BoolVar(&follow, "follow", false, "go on with new events until interrupted")
	c.RunE = func(c *cobra.Command, _ []string) error {
		q.Kind = audit.Kind(kind)
		if err := errors.Join(parseTime(since, &q.Since), parseTime(until, &q.Until)); err != nil {
			return err
		}
		if kind != "" && !slices.Contains(audit.Kinds(), q.Kind) {
			return fmt.Errorf("--kind %q: want one of %v", kind, audit.Kinds())
		}
		r, err := openTrail(c, flags, follow)
		if r == nil || err != nil {
			return err
		}
		defer func() { _ = r.Close() }() // opened for reading
		events := r.Events
		if follow {
			events = r.Follow
		}
		err = events(c.Context(), q, func(e ledger.Record) error { return printEvent(c.OutOrStdout(), e, asJSON) })
		if follow && c.Context().Err() != nil {
			return nil
		}
		return trailError("read the audit trail", err)
	}
	c.AddCommand(newAuditVerify(flags))
	return c
}

func newAuditVerify(flags *sidecar.Flags) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "verify",
		Short:   "Check chain, orders, phases and states of the whole trail",
		Long:    "Checks that no event was changed, removed or put in, and that jobs and sessions agree with the events. Prints the head of the chain, for keeping elsewhere.",
		Example: "  eda-sidecar audit verify",
		Args:    cobra.NoArgs,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := openTrail(c, flags, false)
		if r == nil || err != nil {
			return err
		}
		defer func() { _ = r.Close() }() // opened for reading
		report, err := r.Verify(c.Context())
		if err != nil {
			return trailError("verify the audit trail", err)
		}
		if asJSON {
			return printJSON(c.OutOrStdout(), map[string]any{
				"events": report.Events, "jobs": report.Jobs, "sessions": report.Sessions, "seq": report.Head.Seq, "hash": fmt.Sprintf("%x", report.Head.Hash),
			})
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "ok: %d events, %d jobs, %d sessions; head %s\n", report.Events, report.Jobs, report.Sessions, report.Head)
		return err
	}
	return c
}

// openTrail opens the ledger for reading. If there is nothing to read it says so, and waits for it, or returns nil.
func openTrail(c *cobra.Command, flags *sidecar.Flags, wait bool) (*ledger.Reader, error) {
	cfg, err := load(flags)
	if err != nil {
		return nil, err
	}
	for said := false; ; said = true {
		lock, statErr := os.Stat(filepath.Join(cfg.Workspace, ".eda-sidecar", "owner.lock")) // first: it is written after the ledger
		r, err := ledger.OpenReader(cfg.StateDir)
		if !errors.Is(err, ledger.ErrEmpty) {
			return r, trailError("open the audit trail", err)
		}
		if statErr == nil && lock.Size() > 0 {
			return nil, trailError("open the audit trail", fmt.Errorf("%q: the workspace was used, and its ledger is not there", cfg.StateDir))
		}
		if !said {
			c.PrintErrln("eda-sidecar: nothing is recorded yet")
		}
		if !wait {
			return nil, nil
		}
		select {
		case <-c.Context().Done():
			return nil, nil
		case <-time.After(250 * time.Millisecond): // as Follow
		}
	}
}

func trailError(op string, err error) error {
	if err == nil {
		return nil
	}
	return sidecar.LedgerError(op, err)
}

// parseTime reads RFC 3339, or a duration before now.
func parseTime(text string, to *time.Time) error {
	if text == "" {
		return nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		*to = time.Now().Add(-ago)
		return nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("time %q: want RFC 3339, such as 2026-01-31T12:00:00Z, or a duration, such as 2h", text)
	}
	*to = at
	return nil
}

func printEvent(w io.Writer, r ledger.Record, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintf(w, "%s\n", r.Line())
		return err
	}
	e, err := audit.Decode(r.Body)
	if err != nil {
		return err
	}
	var detail strings.Builder
	for _, key := range []string{"code", "resolution", "proof", "reason"} {
		if v, ok := e.Data[key]; ok {
			fmt.Fprintf(&detail, " %s=%v", key, v)
		}
	}
	_, err = fmt.Fprintf(w, "%6d %s %-20s %-36s %s%s\n", r.Seq, e.At.UTC().Format("2006-01-02T15:04:05.000Z"), e.Kind, e.Job, e.Tool, printable(detail.String()))
	return err
}
