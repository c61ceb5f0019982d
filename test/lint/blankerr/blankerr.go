// Package blankerr reports an error that is assigned to the blank identifier without a comment on the line that says why.
//
// errcheck -blank forbids every such assignment; vet and staticcheck allow all. The house wants the middle: an ignored
// error is a decision, and a decision has a reason.
package blankerr

import (
	"go/ast"
	"go/types"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzer reports assignments such as "f, _ := os.Open(name)" and "_ = f.Close()" that carry no comment.
var Analyzer = &analysis.Analyzer{
	Name:     "blankerr",
	Doc:      "an error assigned to _ needs a reason, in a comment on the same line",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

// noReason matches comments that are directives: of linters, and of analysistest.
var noReason = regexp.MustCompile("^(nolint|lint:|go:|want [\"`])")

func run(pass *analysis.Pass) (any, error) {
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	reasons := reasonLines(pass)
	for c := range in.Root().Preorder((*ast.AssignStmt)(nil), (*ast.ValueSpec)(nil)) {
		var left, right []ast.Expr
		switch n := c.Node().(type) {
		case *ast.AssignStmt:
			left, right = n.Lhs, n.Rhs
		case *ast.ValueSpec:
			if _, isFile := c.Parent().Parent().Node().(*ast.File); isFile {
				continue // var _ Interface = (*T)(nil): a check of the compiler's, no call
			}
			for _, name := range n.Names {
				left = append(left, name)
			}
			right = n.Values
		}
		for i, l := range left {
			id, ok := l.(*ast.Ident)
			if !ok || id.Name != "_" || !isError(typeOf(pass, right, i, len(left))) {
				continue
			}
			start, end := pass.Fset.Position(id.Pos()), pass.Fset.Position(c.Node().End())
			if !reasons[line{start.Filename, start.Line}] && !reasons[line{end.Filename, end.Line}] {
				pass.Reportf(id.Pos(), "an error is ignored without a reason on the line")
			}
		}
	}
	return nil, nil
}

// typeOf returns the type of the i-th of n assigned values; nil if no call or expression makes it.
func typeOf(pass *analysis.Pass, right []ast.Expr, i, n int) types.Type {
	if len(right) == n {
		return pass.TypesInfo.TypeOf(right[i])
	}
	if len(right) != 1 {
		return nil
	}
	call, ok := ast.Unparen(right[0]).(*ast.CallExpr) // v, ok := m[k] and the like drop a value, not an error
	if !ok {
		return nil
	}
	tuple, ok := pass.TypesInfo.TypeOf(call).(*types.Tuple)
	if !ok || i >= tuple.Len() {
		return nil
	}
	return tuple.At(i).Type()
}

func isError(t types.Type) bool {
	return t != nil && t != types.Typ[types.UntypedNil] && types.Implements(t, errorType)
}

type line struct {
	file string
	line int
}

// reasonLines returns the lines that carry a comment which is a reason.
func reasonLines(pass *analysis.Pass) map[line]bool {
	lines := map[line]bool{}
	for _, f := range pass.Files {
		for _, group := range f.Comments {
			for _, c := range group.List {
				text := strings.TrimSpace(strings.Trim(c.Text, "/*"))
				if text != "" && !noReason.MatchString(text) {
					pos := pass.Fset.PositionFor(c.Pos(), true)
					lines[line{pos.Filename, pos.Line}] = true
				}
			}
		}
	}
	return lines
}
