package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/adapters"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

func newRun() *cobra.Command {
	var outs []string
	var session string
	var allowEmpty, asJSON bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "run [--session NAME] [--out NAME=TARGET]... -- COMMAND ARG...",
		Short: "Run any command as a transaction",
		Long: `Runs a command in a cgroup of its own and publishes its outputs together, or not at all.

{NAME} in an argument is the staged path of the output NAME. The command's working directory shows the workspace's
plain top-level entries, read-only; it may write in its own directories and nowhere else. Without --out and --session
it changes nothing.`,
		Example: "  eda-sidecar run --out copy=build/top.v -- cp rtl/top.v '{copy}'",
		Args:    cobra.MinimumNArgs(1),
	}
	flags := workspaceFlags(c)
	c.Flags().StringArrayVarP(&outs, "out", "o", nil, "output NAME and its TARGET in the workspace; may be given many times")
	c.Flags().StringVar(&session, "session", "", "name of the session to work in; it is made if there is none. The command may change its vars in _state.next.json")
	c.Flags().BoolVar(&allowEmpty, "allow-empty", false, "an output of no bytes is whole")
	c.Flags().DurationVar(&timeout, "timeout", 0, "how long the command may run (default 10m, or tool_limits.run.wall)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	c.RunE = func(c *cobra.Command, argv []string) error {
		targets, err := parseOuts(outs, allowEmpty)
		if err != nil {
			return err
		}
		stateful := c.Flags().Changed("session")
		if stateful && session == "" {
			return errors.New("--session: the name is empty")
		}
		tool, args, err := adapters.Command(argv, targets, stateful)
		if err != nil {
			return err
		}
		if err := wantTime(c, timeout); err != nil {
			return err
		}
		s, _, err := open(c, flags)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }() // the next start heals what is left
		req := job.Request{Tool: tool, Args: args, Digest: job.Digest(argv), Principal: principal, Script: true, Timeout: timeout}
		if stateful {
			row, err := s.Runner.OpenSession(c.Context(), principal, session)
			if err != nil {
				return err
			}
			req.Session = row.ID
		}
		return printResult(c.OutOrStdout(), c.ErrOrStderr(), s.Runner.Run(c.Context(), req), asJSON)
	}
	return c
}

// wantTime refuses a --timeout that was given and leaves no time; without one it is zero, for the tool's own.
func wantTime(c *cobra.Command, timeout time.Duration) error {
	if timeout <= 0 && c.Flags().Changed("timeout") {
		return fmt.Errorf("--timeout %v: want a duration above zero", timeout)
	}
	return nil
}

func parseOuts(outs []string, allowEmpty bool) (parsed []adapters.Out, err error) {
	for _, o := range outs {
		name, target, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fmt.Errorf("--out %q: want NAME=TARGET", o)
		}
		parsed = append(parsed, adapters.Out{Name: name, Target: target, AllowEmpty: allowEmpty})
	}
	return parsed, nil
}
