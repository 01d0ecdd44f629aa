package cli

import (
	"slices"
	"strings"
)

// A language is one that --lang knows: the interpreter, how it takes code from
// its command line, and how a file of it is named.
type language struct {
	names   []string
	program string
	flag    string
	suffix  string
}

// languages are those of the agent's exec_code (seed 003).
var languages = []language{
	{[]string{"python", "python3"}, "python3", "-c", ".py"},
	{[]string{"node", "javascript", "js"}, "node", "-e", ".js"},
	{[]string{"bash"}, "bash", "-c", ".sh"},
	{[]string{"sh"}, "sh", "-c", ".sh"},
}

func languageNames() []string {
	var names []string
	for _, l := range languages {
		names = append(names, l.names[0])
	}
	return names
}

func findLanguage(name string) (*language, bool) {
	for i := range languages {
		if slices.Contains(languages[i].names, strings.ToLower(name)) {
			return &languages[i], true
		}
	}
	return nil, false
}

// maxInlineCode is how much code fits into one argument: the kernel's limit of an
// argument is 128 KiB.
const maxInlineCode = 100 << 10

// inline returns the command that runs code given as text. The interpreters
// differ in where the arguments that follow go: sh takes the first as its name,
// node needs to be told that they are not its own flags.
func (l *language) inline(code string, args []string) []string {
	cmd := []string{l.program, l.flag, code}
	switch l.program {
	case "sh", "bash":
		cmd = append(cmd, l.program)
	case "node":
		if len(args) > 0 {
			cmd = append(cmd, "--")
		}
	}
	return append(cmd, args...)
}

// script returns the command that runs code in a file of the sandbox.
func (l *language) script(path string, args []string) []string {
	return append([]string{l.program, path}, args...)
}
