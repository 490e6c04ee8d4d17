"""What strategy `swap` cannot carry from one table to another."""

from __future__ import annotations

from typing import LiteralString

#: code and text of each obstacle; parameters: oid and column
SWAP_OBSTACLES: LiteralString = """
WITH t AS (SELECT c.oid, c.relreplident, c.reltype, a.attnum FROM pg_class c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(column)s WHERE c.oid = %(oid)s)
SELECT 'swap-expression-index', 'The index ' || i.indexrelid::regclass || ' computes from the '
  'vectors. Drop it, or choose `side`.' FROM t JOIN pg_index i ON i.indrelid = t.oid
  WHERE i.indexprs IS NOT NULL AND EXISTS (SELECT FROM pg_depend d WHERE d.objid = i.indexrelid
    AND d.refobjid = t.oid AND d.refobjsubid = t.attnum)
UNION ALL SELECT 'swap-constraint', 'The constraint ' || quote_ident(n.conname) || ' checks the '
  'vectors, or is an exclusion. Drop it, or choose `side`.' FROM t JOIN pg_constraint n
  ON n.conrelid = t.oid WHERE n.contype = 'x' OR n.contype = 'c' AND t.attnum = ANY(n.conkey)
UNION ALL SELECT 'swap-default', 'The column of vectors has a default. Drop it, or choose `side`.'
  FROM t JOIN pg_attrdef f ON f.adrelid = t.oid AND f.adnum = t.attnum
UNION ALL SELECT 'swap-publication', 'A publication sends the table, or its replica identity is '
  'not the default. Take it out, or choose `side`.' FROM t WHERE relreplident <> 'd'
  OR EXISTS (SELECT FROM pg_publication_rel p WHERE p.prrelid = t.oid)
UNION ALL SELECT 'swap-statistics', 'The table has extended statistics. Drop them, or choose '
  '`side`.' FROM t WHERE EXISTS (SELECT FROM pg_statistic_ext s WHERE s.stxrelid = t.oid)
UNION ALL SELECT 'swap-policy', 'The policy ' || quote_ident(p.polname) || ' of another table '
  'reads the table. Drop it, or choose `side`.' FROM t JOIN pg_depend d ON d.refobjid = t.oid
  AND d.classid = 'pg_policy'::regclass JOIN pg_policy p ON p.oid = d.objid
  WHERE p.polrelid <> t.oid GROUP BY p.oid, p.polname
UNION ALL SELECT 'swap-foreign-key', 'The foreign key ' || quote_ident(n.conname) || ' belongs to '
  'a partitioned table or to another owner. Drop it, or choose `side`.' FROM t JOIN pg_constraint n
  ON n.confrelid = t.oid AND n.contype = 'f' JOIN pg_class r ON r.oid = n.conrelid
  WHERE r.relkind = 'p' OR NOT pg_has_role(r.relowner, 'USAGE')
UNION ALL SELECT 'swap-row-type', 'The table ' || d.objid::regclass || ' has a column of the row '
  'type. Drop it, or choose `side`.' FROM t JOIN pg_depend d ON d.refobjid = t.reltype
  AND d.refclassid = 'pg_type'::regclass AND d.classid = 'pg_class'::regclass
  WHERE d.objsubid > 0"""
