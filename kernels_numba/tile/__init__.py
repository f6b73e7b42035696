"""The tile layer: a small vocabulary of register-tile operations, with a body for GPUs and one for CPUs.

A kernel is an ordinary Python function, made by a builder that is given a *tile*: an object that holds the
operations for one half-precision type ("fp16" or "bf16"). With ``gpu.tile(dtype)`` the function is compiled
by Numba-CUDA (``compile.py``): every operation is an intrinsic that emits LLVM IR and inline PTX. With
``cpu.CpuTile(machine, dtype)`` the same, unchanged function runs in NumPy on a ``machine.Machine``, which
counts what it does and raises ``KernelError`` for what a GPU leaves undefined. The two agree bit for bit,
except for the order in which a tensor core adds up.

A *fragment* is what a warp of 32 lanes holds of a matrix: the same number of 32-bit registers in every lane,
each two half-precision elements or one float32. ``layout.py`` says which element lies where. On a GPU a
fragment is a tuple of one lane's registers, on the CPU an array [registers, 32 lanes]. A complex fragment is
one fragment: the registers of the real parts, then those of the imaginary parts.

Numbers of registers, tiles and widths are fixed when an operation is made, outside the kernel; the operation
that results is called inside. Offsets are int64, one for the warp or one for each lane.

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
``lane``, ``warp``, ``block``                      ``lane()`` 0..31, ``warp()`` and ``block()`` indices
``divide``                                         ``divide(a, b)``, of integers not negative
``barrier``                                        ``barrier()``: all warps of the block meet
``warp_sync``                                      ``warp_sync()``: the warp's lanes see each other's
                                                   shared memory
``opaque``, ``small``, ``int64``                    ``opaque(n)``: turns of a loop that is not to be unrolled;
                                                   ``small(i)``: an index that fits 32 bits
``copy_async(halves)``                             ``copy(to_half, source, at, valid)``, zeros where not
                                                   valid; 8, 4, 2 or 1 elements a lane
``copy_pieces(pieces, halves, guarded=)``          ``copy(source, base, limit, index, to0, .., to3)``
``copy_words_async``                               ``copy(to_word, source, at)``, four words a lane
``commit``, ``wait(pending)``                      ``commit()`` closes a group of copies, ``wait()``
                                                   until at most ``pending`` groups are under way
``load_shared(count, width)``                      ``load(word, stride)``: chunks of ``width`` words
``load_global(count, width)``                      ``load(source, word, stride)``
``load_float``                                     ``load_float(source, at)``: one float32 for all lanes
``load_pieces(pieces, count)``                     ``load(o0, o1, o2, o3)``: gather from shared memory
``gather_halves(count)``                           two: ``load(table, word, stride)``, ``gather(base, offsets)``
``store_shared_pieces(pieces)``                    ``store(o0, o1, o2, o3, x)``: scatter to shared memory
``gather(pieces, count, halves, guarded=)``        ``load(source, base, limit, o0, o1, o2, o3)``
``store_pieces(pieces, halves, guarded=)``         ``store(target, base, limit, o0, o1, o2, o3, x)``
``mma(row_tiles, column_tiles, k_tiles)``          ``mma(a, b)``: product in float32
``dft_rows(row_tiles, column_tiles, k_tiles, ...)````dft(factor, data)``: contract the rows
``dft_columns(row_tiles, ..., k_tiles, inverse=)``  ``dft(data, factor)``: contract the columns
``pack(count, swap=)``                             ``pack(values)``: round float32 to halves
``scale(count)``                                   ``scale(values, factor)``: float32
``multiply(count)``, ``multiply_complex(count)``   ``multiply(a, b)``: elementwise, in half precision
``multiply_mirror(count)``                         ``multiply(x, a, m, b)``: x a + conj(m) b
``select(picks)``, ``join``                        ``select(x)``, ``join(a, b)``: registers reordered
``pair_halves(spec)``                              ``pair(x)``: halves regrouped
``transpose(picks)``                               ``transpose(x)``: 8 x 8 blocks of halves transposed
``fill(count)``, ``registers(count)``, ``first``   a fragment of one number, or of up to four integers; one of it
``as_floats(count)``, ``as_words(count)``          the same bits as float32 or as words
``logits(tiles, capped=)``                         ``logits(products, factor, cap)``: scaled, soft-capped
``mask(tiles, value)``                             ``mask(x, key, limits)``: ``value`` from the limit on
``shift(tiles)``, ``outside(tiles)``               ``shift(x, shifts)``; ``outside(x, low, high)``: bits of queries
``exponentials(count, floor=)``                    ``exponentials(x)``: e^x
``add(count)``, ``times(count)``                   ``add(a, b)``, ``times(a, b)``: elementwise, in float32
``add_keys``, ``max_keys``, ``sum_lanes``          ``add_keys(sums, x)``, ``max_keys(most, x)``,
                                                   ``sum_lanes(sums)``: over the keys of a query
``any_bits``, ``differ(count)``, ``choose(tiles)`` ``any_bits(x)`` of all lanes; ``differ(a, b)``;
                                                   ``choose(bits, a, b)``
``anchors``, ``started``, ``decays``, ``decay``    ``anchors(most)``, ``started(sums, shifts)``,
                                                   ``decays(old, new)``: when a shift moves
``spread(rows)``, ``scale_rows(rows, per)``        ``spread(x)``: a value a row; ``scale_rows(x, factors)``
``weigh(rows, widths, stride, careful=)``          ``weigh(sums, weights, values, lane)``: sums += weights values
``weigh_products``, ``scale_queries``              the same on tensor cores, for 8 rows at a time
``widen``, ``cut``, ``less``, ``any_outside``,     elements of one line in all registers: halves as float32,
``largest``, ``total``, ``across``                 the end, a shift, the range, and reductions
``quotient(count)``                                ``quotient(x, total)``: zeros where the total is zero
``consecutive_rows``, ``paged_rows``               row numbers of keys, in a contiguous cache or in pages
``copy_rows(count, step, to_step)``                ``copy(to0, to1, source, rows, stride, at, first, end)``
``load_chunks(count, step)``, ``load_word``        ``load(source, at, place, limit)``; ``load_word(source, at)``
``put_rows(rows)``, ``get_float``                  numbers of rows to and from shared memory
``store_word_pieces``, ``load_fresh_pieces``,      partial results in global memory, written by one block and
``put_float``                                      read by another
``fence``, ``arrive``                              ``fence()``; ``arrive(counters, at, total)``: how many came before
================================================== ========================================================

Nothing outside this package imports ``numba.cuda``; importing the package itself imports nothing.
"""
