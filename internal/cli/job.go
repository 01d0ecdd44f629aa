package cli

import (
	"fmt"
	"path/filepath"
	"strings"
)

// maxCode bounds a program given with --lang in bytes.
const maxCode = 64 << 20

// codeDir is where code that does not fit on a command line is put.
const codeDir = "/tmp/bouvet"

// A job is what a run has to do in its sandbox.
type job struct {
	// args is the command; empty means what the image is made for.
	args []string
	// code, with a language, is put into the file codePath before.
	code     []byte
	codePath string
	// codeFromStdin means that standard input was the code, and is used up.
	codeFromStdin bool
	env           []string
	copies        []fileCopy
}

// job finds out what the words and flags ask for.
func (c *runCommand) job(args []string, codeGiven bool) (*job, error) {
	const help = "bouvet run --help"
	if c.lang == "" {
		switch {
		case codeGiven:
			return nil, usage("bouvet run --lang python --code ...", "cannot use --code without --lang")
		case len(args) == 0 && c.wantsTerminal() == nil && !c.interactive:
			return nil, usage("bouvet run -- COMMAND", "cannot run: no command was given, and there is no terminal for a shell")
		case len(args) > 0 && strings.TrimSpace(args[0]) == "":
			return nil, usage(help, "cannot run: the command is empty")
		}
		return &job{args: args}, noNUL(args)
	}
	lang, ok := findLanguage(c.lang)
	if !ok {
		return nil, usage("--lang python", "cannot run %s code: the languages are %s", quoted(c.lang), strings.Join(languageNames(), ", "))
	}
	if codeGiven {
		return c.codeJob(lang, []byte(c.code), "code"+lang.suffix, args)
	}
	if len(args) == 0 {
		return nil, usage("bouvet run --lang "+lang.names[0]+" FILE, or - for standard input, or --code CODE", "cannot run %s code: none was given", lang.names[0])
	}
	file, args := args[0], args[1:]
	if file == "-" {
		code, err := readAllBounded(c.stdin, "standard input", maxCode)
		if err != nil {
			return nil, fmt.Errorf("cannot read the code: %w", err)
		}
		j, err := c.codeJob(lang, code, "stdin"+lang.suffix, args)
		if err == nil {
			j.codeFromStdin = true
		}
		return j, err
	}
	code, err := readBounded(file, maxCode)
	if err != nil {
		return nil, &problem{kind: kindFile, err: fmt.Errorf("cannot read the code: %w", err), remedy: "bouvet run --lang " + lang.names[0] + " FILE"}
	}
	// A file keeps its name, for the messages of the interpreter.
	path := codeDir + "/" + safeName(filepath.Base(file), "code"+lang.suffix)
	return &job{args: lang.script(path, args), code: code, codePath: path}, noNUL(args)
}

// codeJob runs code that has no name: from the command line where it fits.
func (c *runCommand) codeJob(lang *language, code []byte, name string, args []string) (*job, error) {
	if err := noNUL(args); err != nil {
		return nil, err
	}
	if len(code) <= maxInlineCode && !strings.ContainsRune(string(code), 0) {
		return &job{args: lang.inline(string(code), args)}, nil
	}
	path := codeDir + "/" + name
	return &job{args: lang.script(path, args), code: code, codePath: path}, nil
}

func noNUL(args []string) error {
	for _, a := range args {
		if strings.ContainsRune(a, 0) {
			return usage("", "cannot run: an argument contains a NUL byte")
		}
	}
	return nil
}

// safeName keeps a host's file name as a name in the sandbox if it is harmless
// there; one that begins with a dash would be a flag.
func safeName(name, otherwise string) string {
	if name == "" || name == "." || name == ".." || name[0] == '-' || len(name) > 200 || strings.ContainsAny(name, "/\x00") {
		return otherwise
	}
	return name
}
