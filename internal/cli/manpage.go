package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manPage is the manual page of one command, in the man(7) macros.
func manPage(cmd *cobra.Command) string {
	var b strings.Builder
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" Bouvet\n", strings.ToUpper(name))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(cmd.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(cmd.UseLine()))
	fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", roffText(longOf(cmd)))
	if flags := cmd.LocalFlags(); flags.HasAvailableFlags() {
		b.WriteString(".SH OPTIONS\n")
		flags.VisitAll(func(f *pflag.Flag) {
			if f.Hidden {
				return
			}
			value, text := pflag.UnquoteUsage(f)
			names := "--" + f.Name
			if f.Shorthand != "" {
				names = "-" + f.Shorthand + ", " + names
			}
			fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(names+" "+value)), roff(text+defaultOf(f)))
		})
	}
	if cmd.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(unindent(cmd.Example)))
	}
	if cmd.HasSubCommands() || cmd.HasParent() {
		b.WriteString(".SH SEE ALSO\n")
		var also []string
		if cmd.HasParent() {
			also = append(also, cmd.Parent().CommandPath())
		}
		for _, sub := range cmd.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				also = append(also, sub.CommandPath())
			}
		}
		for i, path := range also {
			also[i] = roff(strings.ReplaceAll(path, " ", "-")) + "(1)"
		}
		b.WriteString(strings.Join(also, ", ") + "\n")
	}
	return b.String()
}

// roff escapes what the formatter would take for its own.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// roffText sets paragraphs, and indented lines as they are.
func roffText(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		if indented := strings.HasPrefix(line, "  "); indented != code {
			if code = indented; code {
				b.WriteString(".nf\n")
			} else {
				b.WriteString(".fi\n")
			}
		}
		if line == "\n" {
			b.WriteString(".PP\n")
			continue
		}
		b.WriteString(roff(strings.TrimPrefix(line, "  ")))
	}
	if code {
		b.WriteString(".fi\n")
	}
	return b.String()
}
