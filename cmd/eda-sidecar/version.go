package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=...
var version = "devel"

func newVersion() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "version", Short: "Print version, revision and Go version", Example: "  eda-sidecar version --json", Args: cobra.NoArgs,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if asJSON {
			return printJSON(c.OutOrStdout(), map[string]string{"version": version, "revision": revision(), "go": runtime.Version()})
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "eda-sidecar %s, revision %s, %s\n", version, revision(), runtime.Version())
		return err
	}
	return c
}

// revision is the commit that this program was built from.
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
