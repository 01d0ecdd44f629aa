package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newGenDocsCommand writes what is generated from the commands themselves: the
// reference in Markdown and manual pages.
func newGenDocsCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "gen-docs DIR",
		Short:  "write CLI.md and manual pages",
		Long:   "Writes DIR/CLI.md and a manual page per command in DIR/man1, replacing older ones.",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return genDocs(cmd.Root(), args[0])
		},
	}
}

func genDocs(root *cobra.Command, dir string) error {
	if err := replaceFile(filepath.Join(dir, "CLI.md"), markdown(root)); err != nil {
		return err
	}
	var err error
	eachCommand(root, func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		if e := replaceFile(filepath.Join(dir, "man1", name), manPage(cmd)); err == nil {
			err = e
		}
	})
	return err
}

func replaceFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // documentation is for everybody
		return fmt.Errorf("cannot write documentation: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // as above
		return fmt.Errorf("cannot write documentation: %w", err)
	}
	return nil
}

// eachCommand visits the commands that users see, in the order of the help.
func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	if cmd.Hidden || cmd.Name() == "help" {
		return
	}
	visit(cmd)
	if cmd.Name() == "completion" {
		return // each shell's is told by its own help
	}
	for _, sub := range cmd.Commands() {
		eachCommand(sub, visit)
	}
}

// markdown is the reference of all commands on one page.
func markdown(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# The command line\n\n<!-- Written by bouvet gen-docs docs: change the commands, not this file. -->\n")
	eachCommand(root, func(cmd *cobra.Command) {
		fmt.Fprintf(&b, "\n## %s\n\n", cmd.CommandPath())
		if cmd.Runnable() && !cmd.HasSubCommands() {
			fmt.Fprintf(&b, "```\n%s\n```\n\n", cmd.UseLine())
		}
		b.WriteString(markdownText(longOf(cmd)))
		if cmd.Example != "" {
			fmt.Fprintf(&b, "\n```sh\n%s\n```\n", unindent(cmd.Example))
		}
		if flags := cmd.LocalFlags(); flags.HasAvailableFlags() {
			b.WriteString("\n| flag | value | |\n|---|---|---|\n")
			flags.VisitAll(func(f *pflag.Flag) {
				if f.Hidden {
					return
				}
				value, text := pflag.UnquoteUsage(f)
				fmt.Fprintf(&b, "| %s | %s | %s |\n", flagNames(f), value, escapeCell(text+defaultOf(f)))
			})
		}
	})
	return b.String()
}

// markdownText sets indented lines of a help text as code.
func markdownText(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if indented := strings.HasPrefix(line, "  "); indented != code {
			b.WriteString("```\n")
			code = indented
		}
		b.WriteString(strings.TrimPrefix(line, "  "))
	}
	if code {
		b.WriteString("```\n")
	}
	return b.String()
}

func longOf(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return strings.ToUpper(cmd.Short[:1]) + cmd.Short[1:] + "."
}

func flagNames(f *pflag.Flag) string {
	if f.Shorthand != "" {
		return "`-" + f.Shorthand + "`, `--" + f.Name + "`"
	}
	return "`--" + f.Name + "`"
}

// defaultOf is a default worth mentioning, as the help has it.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "0", "false", "[]":
		return ""
	}
	if f.Value.Type() == "string" {
		return fmt.Sprintf(" (default %q)", f.DefValue)
	}
	return " (default " + f.DefValue + ")"
}

func escapeCell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func unindent(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.Join(lines, "\n")
}
