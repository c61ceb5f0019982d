package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/txn"
)

func newRecover() *cobra.Command {
	var dryRun, asJSON bool
	c := &cobra.Command{
		Use:   "recover",
		Short: "Bring every job of an earlier process to its end",
		Long: `Kills what an earlier process left running, proves it dead, and rolls every job back or forward. Every command that
opens the workspace does this first; recover does nothing else.`,
		Example: "  eda-sidecar recover --dry-run",
		Args:    cobra.NoArgs,
	}
	flags := workspaceFlags(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be done, and change nothing")
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		var found []sidecar.Recovered
		if dryRun {
			if found, err = sidecar.DryRun(c.Context(), cfg); err != nil {
				return err
			}
		} else {
			s, err := sidecar.Open(c.Context(), cfg)
			if err != nil {
				return err
			}
			found = s.Recovered
			if err := s.Close(); err != nil {
				return err
			}
		}
		if asJSON {
			return printJSON(c.OutOrStdout(), append([]sidecar.Recovered{}, found...))
		}
		var text strings.Builder
		if len(found) == 0 {
			text.WriteString("nothing to recover\n")
		}
		for _, r := range found {
			condition := ""
			if r.If != "" {
				condition = ", if " + r.If
			}
			fmt.Fprintf(&text, "%s: %s%s%s\n", title(r), r.Resolution, condition, because(r.Reason))
			for _, a := range r.Actions {
				if a.Kind == txn.ActRetire { // of every job, later
					continue
				}
				fmt.Fprintf(&text, "  %s %s\n", a.Kind, a.Why)
			}
		}
		_, err = io.WriteString(c.OutOrStdout(), text.String())
		return err
	}
	return c
}
