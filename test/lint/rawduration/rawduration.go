// Package rawduration reports an untyped constant used as a time.Duration: context.WithTimeout(ctx, 5) is five nanoseconds.
//
// vet, staticcheck and durationcheck all accept it.
package rawduration

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// Analyzer reports an untyped constant other than 0 whose context makes it a time.Duration. Factors and divisors of a
// Duration (5*time.Second, d/2) and written-out conversions (time.Duration(math.MaxInt64)) are what they should be.
var Analyzer = &analysis.Analyzer{
	Name:     "rawduration",
	Doc:      "an untyped constant other than 0 used as a time.Duration counts nanoseconds; write the unit",
	Requires: []*analysis.Analyzer{inspect.Analyzer},
	Run:      run,
}

func run(pass *analysis.Pass) (any, error) {
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	// The type checker gives the context's type to the outermost untyped expression: 2*3 has it, its factors do not.
	kinds := []ast.Node{(*ast.BasicLit)(nil), (*ast.Ident)(nil), (*ast.SelectorExpr)(nil), (*ast.UnaryExpr)(nil), (*ast.BinaryExpr)(nil)}
	for c := range in.Root().Preorder(kinds...) {
		expr := c.Node().(ast.Expr)
		tv := pass.TypesInfo.Types[expr]
		if tv.Value == nil || !isDuration(tv.Type) || constant.Sign(tv.Value) == 0 || !isUntyped(pass, expr) {
			continue
		}
		if !unitIsWritten(pass, c) {
			pass.Reportf(expr.Pos(), "untyped constant %s as a time.Duration is in nanoseconds: write the unit", tv.Value)
		}
	}
	return nil, nil
}

// unitIsWritten climbs from the constant at c through the expression it is part of, until a unit multiplies it.
func unitIsWritten(pass *analysis.Pass, c inspector.Cursor) bool {
	for {
		child, parent := c.Node(), c.Parent()
		switch p := parent.Node().(type) {
		case *ast.ParenExpr, *ast.UnaryExpr: // part of the same value
		case *ast.BinaryExpr:
			other := p.Y
			if child == p.Y {
				other = p.X
			}
			if (p.Op == token.MUL || p.Op == token.QUO) && hasUnit(pass, other) {
				return true
			}
			if !isDuration(pass.TypesInfo.TypeOf(p)) { // a comparison: its operands stand for themselves
				return false
			}
		case *ast.CallExpr:
			return pass.TypesInfo.Types[p.Fun].IsType() // time.Duration(n) is written out
		default:
			return false
		}
		c = parent
	}
}

// hasUnit reports whether e contains a value that is a Duration by its own type.
func hasUnit(pass *analysis.Pass, e ast.Expr) (found bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if x, ok := n.(ast.Expr); ok {
			switch x.(type) {
			case *ast.Ident, *ast.SelectorExpr, *ast.CallExpr, *ast.IndexExpr, *ast.StarExpr:
				found = found || isDuration(pass.TypesInfo.TypeOf(x)) && !isUntyped(pass, x)
			}
		}
		return !found
	})
	return found
}

// isUntyped reports whether e is made of literals and of names of constants declared without a type, and of nothing else.
func isUntyped(pass *analysis.Pass, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return true
	case *ast.ParenExpr:
		return isUntyped(pass, e.X)
	case *ast.UnaryExpr:
		return isUntyped(pass, e.X)
	case *ast.BinaryExpr:
		return isUntyped(pass, e.X) && isUntyped(pass, e.Y)
	case *ast.SelectorExpr:
		return isUntyped(pass, e.Sel)
	case *ast.Ident:
		obj, ok := pass.TypesInfo.Uses[e].(*types.Const)
		if !ok {
			return false
		}
		basic, ok := obj.Type().(*types.Basic)
		return ok && basic.Info()&types.IsUntyped != 0
	}
	return false
}

func isDuration(t types.Type) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Pkg() != nil && named.Obj().Pkg().Path() == "time" && named.Obj().Name() == "Duration"
}
