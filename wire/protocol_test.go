package wire_test

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestProtocolDocument: docs/PROTOCOL.md names every exported constant with its
// value, and every message with all its fields in one block of text.
func TestProtocolDocument(t *testing.T) {
	raw, err := os.ReadFile("../docs/PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(raw), "\n")
	fset := token.NewFileSet()
	var files []*ast.File
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	// Without its imports the package does not check, but its constants do.
	conf := types.Config{Error: func(error) {}, FakeImportC: true}
	pkg, _ := conf.Check("wire", fset, files, nil)
	constants, messages := 0, 0
	for _, name := range pkg.Scope().Names() {
		switch o := pkg.Scope().Lookup(name).(type) {
		case *types.Const:
			if !o.Exported() {
				continue
			}
			constants++
			value := o.Val().ExactString()
			if o.Val().Kind() == constant.String {
				value = strings.ReplaceAll(constant.StringVal(o.Val()), "\n", `\n`)
			}
			if !documented(lines, name, value) {
				t.Errorf("constant %s = %s is not in the document", name, value)
			}
		case *types.TypeName:
			s, ok := o.Type().Underlying().(*types.Struct)
			fields := jsonFields(s, ok)
			if !o.Exported() || len(fields) == 0 {
				continue
			}
			messages++
			for _, field := range fields {
				if !described(lines, name, field) {
					t.Errorf("field %s of %s is not in the document", field, name)
				}
			}
		}
	}
	if constants < 70 || messages < 30 {
		t.Errorf("found %d constants and %d messages only: is the package read?", constants, messages)
	}
}

func jsonFields(s *types.Struct, ok bool) (fields []string) {
	if !ok {
		return nil
	}
	for i := range s.NumFields() {
		name, _, _ := strings.Cut(reflect.StructTag(s.Tag(i)).Get("json"), ",")
		if name != "" && name != "-" {
			fields = append(fields, name)
		}
	}
	return fields
}

// documented reports whether a line names the constant and its value.
func documented(lines []string, name, value string) bool {
	number := regexp.MustCompile(`(^|[^0-9A-Za-z.-])` + regexp.QuoteMeta(value) + `([^0-9A-Za-z]|$)`)
	for _, line := range lines {
		if strings.Contains(line, "`"+name+"`") && number.MatchString(line) {
			return true
		}
	}
	return false
}

// described reports whether the row of the message, or the table that it heads,
// names the field.
func described(lines []string, message, field string) bool {
	for i, line := range lines {
		if !strings.HasPrefix(line, "| `"+message+"`") {
			continue
		}
		if strings.Contains(line, "`"+field+"`") {
			return true
		}
		if i+1 < len(lines) && strings.HasPrefix(lines[i+1], "|---") {
			for _, row := range lines[i+2:] {
				first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
				if strings.Contains(first, "`"+field+"`") {
					return true
				}
				if row == "" {
					break
				}
			}
		}
	}
	return false
}
