package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
	"github.com/eda-sidecar/eda-sidecar/sidecar"
)

func newDoctor() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what calls rest on here, and say how to mend it",
		Long: `Checks containment, the workspace's volume, the ledger, leftovers of earlier processes and every tool's programs: one
line a check, with what was found and the fix. Exit status 69 if any check fails.`,
		Example: "  eda-sidecar doctor --json",
		Args:    cobra.NoArgs,
	}
	flags := workspaceFlags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		checks := sidecar.Doctor(c.Context(), cfg)
		if asJSON {
			if err := printJSON(c.OutOrStdout(), checks); err != nil {
				return err
			}
		} else {
			var text strings.Builder
			for _, k := range checks {
				fmt.Fprintf(&text, "%-4s %-22s %s\n", k.Status, k.Name, printable(k.Found))
				if k.Fix != "" {
					fmt.Fprintf(&text, "     %-22s fix: %s\n", "", k.Fix)
				}
			}
			if _, err := io.WriteString(c.OutOrStdout(), text.String()); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(checks, func(k cgroup.Check) bool { return k.Status == cgroup.Fail }) {
			return &silentError{exitNoSupport}
		}
		return nil
	}
	return c
}
