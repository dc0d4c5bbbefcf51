package fencepost

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

// exportedNames are the names that a package exports; those of methods and fields also with their
// type.
func exportedNames(t *testing.T, folder string) map[string]bool {
	names := map[string]bool{}
	isProduct := func(file fs.FileInfo) bool { return !strings.HasSuffix(file.Name(), "_test.go") }
	for _, read := range must[map[string]*ast.Package](t)(
		parser.ParseDir(token.NewFileSet(), folder, isProduct, 0)) {
		ast.Inspect(read, func(node ast.Node) bool {
			switch found := node.(type) {
			case *ast.FuncDecl:
				names[found.Name.Name] = true
				if found.Recv != nil {
					of := found.Recv.List[0].Type
					if pointer, ok := of.(*ast.StarExpr); ok {
						of = pointer.X
					}
					if named, ok := of.(*ast.Ident); ok {
						names[named.Name+"."+found.Name.Name] = true
					}
				}
				return false
			case *ast.TypeSpec:
				names[found.Name.Name] = true
				if fields, ok := found.Type.(*ast.StructType); ok {
					for _, field := range fields.Fields.List {
						for _, name := range field.Names {
							names[found.Name.Name+"."+name.Name] = true
						}
					}
				}
			}
			return true
		})
	}
	return names
}

func TestThePageOfConveniencesNamesWhatIsHere(t *testing.T) {
	t.Parallel()
	page := must[[]byte](t)(os.ReadFile("../../docs/reference/conveniences.md"))
	here, _, _ := strings.Cut(string(page), "\n## There\n")
	names := exportedNames(t, ".")
	for name := range exportedNames(t, "fencetest") {
		names["fencetest."+name] = true
	}
	at, count := 0, 0
	for _, line := range strings.Split(here, "\n") {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(line, "|")
		for i := range cells {
			if strings.TrimSpace(cells[i]) == "Go" {
				at = i
			}
		}
		for _, text := range regexp.MustCompile("`[^`]+`").FindAllString(cells[at], -1) {
			for _, name := range regexp.MustCompile(`(fencetest\.)?\b[A-Z][\w.]*`).FindAllString(text, -1) {
				count++
				if !names[name] {
					t.Errorf("there is no %s", name)
				}
			}
		}
	}
	if count < 20 {
		t.Errorf("%d names were found", count)
	}
}
