package main

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/test/house/doctable"
)

var update = flag.Bool("update", false, "rewrite the tables in docs/")

// TestTables holds the tables of this package's documents against the code.
func TestTables(t *testing.T) {
	doctable.Check(t, *update, "docs/protocol.md", "codes", codeTable())
	doctable.Check(t, *update, "docs/cli.md", "commands", commandTable())
	doctable.Check(t, *update, "docs/config.md", "keys", configTable())
	doctable.Check(t, *update, "docs/tools.md", "tools", toolTable(t))
}

func codeTable() string {
	var b strings.Builder
	b.WriteString("| code | exit | meaning | hint |\n|---|---|---|---|\n")
	for _, c := range job.Codes() {
		fmt.Fprintf(&b, "| `%s` | %d | %s | %s |\n", c.Code, exitOf(c.Code), c.Meaning, c.Hint)
	}
	return b.String()
}

func commandTable() string {
	var b strings.Builder
	b.WriteString("| command | does | flags |\n|---|---|---|\n")
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.HasParent() {
			var flags []string
			c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
				flags = append(flags, fmt.Sprintf("`--%s` %s", f.Name, strings.ReplaceAll(f.Usage, "|", "\\|")))
			})
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", strings.ReplaceAll(c.UseLine(), "|", "\\|"), c.Short, strings.Join(flags, "<br>"))
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	return b.String()
}

func configTable() string {
	var b strings.Builder
	b.WriteString("| key | default | meaning |\n|---|---|---|\n")
	for _, k := range sidecar.ConfigKeys() {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.Key, k.Default, k.Meaning)
	}
	return b.String()
}

func toolTable(t *testing.T) string {
	catalog, err := adapters.NewCatalog()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| tool | trust | what it does | arguments | limits |\n|---|---|---|---|---|\n")
	for _, tool := range catalog.Tools() {
		var params []string
		for _, p := range tool.Params {
			params = append(params, fmt.Sprintf("`%s` %s", p.Name, strings.ReplaceAll(describe(p), "|", "\\|")))
		}
		l := tool.Limits
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %v, at most %v; memory %d MiB; %d processes; staging %d MiB; log %d MiB |\n", tool.Name, tool.Trust, tool.Doc,
			strings.Join(params, "<br>"), l.Wall, l.WallMax, l.MemoryBytes>>20, l.Pids, l.StagingBytes>>20, l.LogBytes>>20)
	}
	return b.String()
}

// TestExitCodes holds the mapping against the contract: every code has its exit status, and only OK has 0.
func TestExitCodes(t *testing.T) {
	want := map[int][]job.Code{
		0:   {job.OK},
		2:   {job.InvalidArgument, job.Denied, job.ToolNotInstalled, job.SessionNotFound, job.SessionDestroyed},
		69:  {job.ContainmentUnavailable},
		70:  {job.TerminationUnproven, job.CommitInDoubt, job.Internal},
		75:  {job.Busy, job.ShuttingDown, job.WorkspaceFull, job.AuditUnavailable},
		124: {job.ToolTimeout},
		130: {job.CodeCancelled},
		1:   {job.ToolFailed, job.OutputInvalid, job.OutputLimit, job.OutOfMemory, job.ProcessLimit, job.OutputConflict, job.PublishFailed},
	}
	seen := 0
	for exit, codes := range want {
		for _, c := range codes {
			seen++
			if got := exitOf(c); got != exit {
				t.Errorf("%s: exit %d, want %d", c, got, exit)
			}
		}
	}
	if all := job.Codes(); len(all) != seen {
		t.Errorf("%d codes are documented, %d have an exit status here", len(all), seen)
	}
	for _, c := range job.Codes() {
		if c.Code != job.OK && (c.Hint == "" || c.Meaning == "") {
			t.Errorf("%s has no meaning or hint", c.Code)
		}
	}
}

// TestExamples wants every command to have an example and a help text that begins like a sentence.
func TestExamples(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.HasParent() && (c.Example == "" || !strings.Contains(c.Example, c.CommandPath())) {
			t.Errorf("%s has no example of itself", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
}
