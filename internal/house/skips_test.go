package house_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// remedy is what the message of a skipped test must contain: a command to type,
// or the word that introduces one.
var remedy = regexp.MustCompile("`[^`]+`|\\brun\\b|\\bset [A-Z_]+")

// A test that does not run must say what it lacks and how to get it: else it
// stays skipped for ever.
func TestSkipsNameARemedy(t *testing.T) {
	files(t, ".go", func(path string, content []byte) {
		for _, complaint := range skipsWithoutRemedy(t, path, content) {
			t.Error(complaint)
		}
	})
}

func TestSkipsWithoutRemedyAreFound(t *testing.T) {
	tests := []struct {
		statement string
		want      int
	}{
		{`t.Skip("no erofs")`, 1},
		{`t.Skipf("no %s", "erofs-utils")`, 1},
		{`tb.SkipNow()`, 1},
		{`t.Skip(err)`, 1},
		{"t.Skipf(\"%v: `apt-get install erofs-utils`\", err)", 0},
		{`t.Skip("no image: " + "run make image")`, 0},
		{`t.Skip("slow: set BOUVET_SOAK=1")`, 0},
		{`decoder.Skip("anything")`, 0},
	}
	for _, tt := range tests {
		source := "package p\nfunc f() { " + tt.statement + " }\n"
		if got := len(skipsWithoutRemedy(t, "p.go", []byte(source))); got != tt.want {
			t.Errorf("%s: %d complaints, want %d", tt.statement, got, tt.want)
		}
	}
}

func skipsWithoutRemedy(t *testing.T, path string, content []byte) []string {
	t.Helper()
	if !strings.Contains(string(content), ".Skip") {
		return nil
	}
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, content, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var complaints []string
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || !isSkip(call.Fun) {
			return true
		}
		if !remedy.MatchString(literals(call.Args)) {
			complaints = append(complaints, fset.Position(call.Pos()).String()+": a skip that names no remedy: say what to run")
		}
		return true
	})
	return complaints
}

// isSkip recognises the methods of a testing.TB by the names these have.
func isSkip(fun ast.Expr) bool {
	method, ok := fun.(*ast.SelectorExpr)
	if !ok || (method.Sel.Name != "Skip" && method.Sel.Name != "Skipf" && method.Sel.Name != "SkipNow") {
		return false
	}
	receiver, ok := method.X.(*ast.Ident)
	if !ok {
		return false
	}
	switch receiver.Name {
	case "t", "tb", "b", "f", "r":
		return true
	}
	return false
}

// literals joins the string literals in the arguments of a call.
func literals(args []ast.Expr) string {
	var all strings.Builder
	for _, arg := range args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					all.WriteString(s)
				}
			}
			return true
		})
	}
	return all.String()
}
