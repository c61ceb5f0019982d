package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// principal is who calls from the command line: whoever may open the workspace.
const principal = "local"

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "eda-sidecar",
		Short: "Run EDA tools as transactions: contained, proven dead, published whole or not at all",
		Long: `Runs EDA tools as transactions. A tool runs in a cgroup of its own, on a clone of the session's state and with its
outputs in private staging. Only when the whole process tree is proven dead and the outputs are proven whole are
outputs and state published, atomically; on timeout, cancel, error or crash nothing has changed.

Exit status: 0 committed or read; 1 the tool failed or its outputs are not whole; 2 usage, arguments, not installed;
69 no containment here; 70 something is not known (see audit); 75 try again; 124 timeout; 130 cancelled.`,
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }, // so that an unknown command is an error
	}
	root.AddCommand(newServe(), newDrain(), newRun(), newCall(), newTools(), newDoctor(), newRecover(), newAudit(), newVersion())
	return root
}

// workspaceFlags adds the flags of every command that touches a workspace.
func workspaceFlags(c *cobra.Command) *sidecar.Flags {
	f := &sidecar.Flags{Environ: os.Environ()}
	c.PersistentFlags().StringVarP(&f.Workspace, "workspace", "w", ".", "shared directory tree that holds all inputs and targets")
	c.PersistentFlags().StringVar(&f.StateDir, "state-dir", "", "directory of the ledger, on a local file system (default <workspace>/.eda-sidecar/state)")
	c.PersistentFlags().StringVar(&f.Config, "config", "", "YAML configuration file")
	_ = c.MarkPersistentFlagDirname("workspace")              // the flag exists
	_ = c.MarkPersistentFlagDirname("state-dir")              // as above
	_ = c.MarkPersistentFlagFilename("config", "yaml", "yml") // as above
	return f
}

func load(f *sidecar.Flags) (sidecar.Config, error) {
	cfg, err := sidecar.LoadConfig(*f)
	if err != nil {
		return cfg, &job.Error{Code: job.InvalidArgument, Op: "read the configuration", Err: err}
	}
	return cfg, nil
}

// open loads the configuration and opens the engine.
func open(c *cobra.Command, f *sidecar.Flags) (*sidecar.Sidecar, sidecar.Config, error) {
	cfg, err := load(f)
	if err != nil {
		return nil, cfg, err
	}
	s, err := sidecar.Open(c.Context(), cfg)
	if err != nil {
		return nil, cfg, err
	}
	printRecovered(c, s.Recovered)
	return s, cfg, nil
}

func printRecovered(c *cobra.Command, recovered []sidecar.Recovered) {
	for _, r := range recovered {
		c.PrintErrf("eda-sidecar: recovered %s: %s%s\n", title(r), r.Resolution, because(r.Reason))
	}
}

// title says what was recovered: a job, a read, or what somebody put into jobs/.
func title(r sidecar.Recovered) string {
	switch {
	case r.Tool == "":
		return fmt.Sprintf("jobs/%s", printable(r.Job))
	case r.Phase == "":
		return fmt.Sprintf("job %s of %s, a read", r.Job, r.Tool)
	}
	return fmt.Sprintf("job %s of %s, in %s", r.Job, r.Tool, r.Phase)
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}
