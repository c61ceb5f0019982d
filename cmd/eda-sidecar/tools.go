package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/adapters"
)

func newTools() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:     "tools",
		Short:   "List the tools and their arguments",
		Long:    "Lists the built-in tools and those that the configuration declares. 'eda-sidecar doctor' says which are installed.",
		Example: "  eda-sidecar tools --json",
		Args:    cobra.NoArgs,
	}
	flags := workspaceFlags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON list, with the schema of the arguments")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		if asJSON {
			list := []map[string]any{}
			for _, t := range cfg.Catalog.Tools() {
				list = append(list, map[string]any{"name": t.Name, "title": t.Title, "description": t.Doc, "trust": t.Trust, "inputSchema": t.InputSchema(), "outputSchema": t.Data})
			}
			return printJSON(c.OutOrStdout(), list)
		}
		var text strings.Builder
		for _, t := range cfg.Catalog.Tools() {
			fmt.Fprintf(&text, "%s (%s): %s\n", t.Name, t.Trust, t.Doc)
			for _, p := range t.Params {
				fmt.Fprintf(&text, "  %-14s %s\n", p.Name, describe(p))
			}
		}
		_, err = io.WriteString(c.OutOrStdout(), text.String())
		return err
	}
	schema := &cobra.Command{
		Use:     "schema [TOOL]",
		Short:   "Print the JSON Schema of declared tools, or of one tool's arguments",
		Long:    "Prints the JSON Schema of the configuration's tools list, for an editor; with TOOL, that of the tool's arguments.",
		Example: "  eda-sidecar tools schema yosys_synth",
		Args:    cobra.MaximumNArgs(1),
	}
	schema.RunE = func(c *cobra.Command, argv []string) error {
		if len(argv) == 0 {
			_, err := fmt.Fprint(c.OutOrStdout(), adapters.DeclaredSchema())
			return err
		}
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		tool, hint := cfg.Catalog.Tool(argv[0])
		if tool == nil {
			return fmt.Errorf("there is no tool %q (%s)", argv[0], hint)
		}
		return printJSON(c.OutOrStdout(), tool.InputSchema())
	}
	schema.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completeCall(flags, nil)
	}
	c.AddCommand(schema, newToolsCheck(flags))
	return c
}

// describe is one parameter in a line: kind, whether it must be given, what it is.
func describe(p adapters.Param) string {
	kind := string(p.Kind)
	if p.List {
		kind = "list of " + kind
	}
	switch {
	case p.Required:
		kind += ", required"
	case p.Default != nil:
		kind += fmt.Sprintf(", default %v", p.Default)
	}
	return fmt.Sprintf("(%s) %s", kind, p.Doc)
}
