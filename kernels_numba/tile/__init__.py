"""The tile layer: a small vocabulary of register-tile operations, with a body for GPUs and one for CPUs.

A kernel is an ordinary Python function, made by a builder that is given a *tile*: an object that holds the
operations for one half-precision type ("fp16" or "bf16"), or those that need none ("fp32"). With
``gpu_vocabularies.tile(dtype)`` the function is compiled by Numba-CUDA (``compile.py``): every operation is an
intrinsic that emits LLVM IR and inline PTX. With ``cpu.CpuTile(machine, dtype)`` the same, unchanged function runs in
NumPy on a ``machine.Machine``, which counts what it does and raises ``KernelError`` for what a GPU leaves undefined.
The two agree bit for bit, except for the order in which a tensor core adds up.

A *fragment* is what a warp of 32 lanes holds of a matrix: the same number of 32-bit registers in every lane, each
two half-precision elements or one float32 (transforms of filters also have float64). ``layout.py`` says which element
lies where. On a GPU a fragment is a tuple of one lane's registers, on the CPU an array [registers, 32 lanes]. A
complex fragment is one fragment: the registers of the real parts, then those of the imaginary parts.

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
``held``                                           ``held(i)``: an index that is worked out here, once
``copy_async(halves)``                             ``copy(to_half, source, at, valid)``, zeros where not
                                                   valid; 8, 4, 2 or 1 elements a lane
``copy_pieces(pieces, halves, guarded=)``          ``copy(source, base, limit, index, to0, .., to3)``
``copy_words_async``                               ``copy(to_word, source, at)``, four words a lane
``prefetch``                                       ``prefetch(source, at, valid)``: a half element's line
                                                   into the L2 cache
``commit``, ``wait(pending)``                      ``commit()`` closes a group of copies, ``wait()``
                                                   until at most ``pending`` groups are under way
``follow(overlap=)``                               ``follow()``: after the launch before, and let the next start
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
``dft_rows_halves``, ``dft_columns_halves``        the same, rounded before outputs and mirrors are added up
``mma_halves``, ``mma_to_parts_halves``            products that tensor cores round, in fp16 every 16 terms
``pack(count, swap=)``                             ``pack(values)``: round float32 to halves
``scale(count)``                                   ``scale(values, factor)``: float32
``multiply(count)``, ``multiply_complex(count)``   ``multiply(a, b)``: elementwise, in half precision
``multiply_mirror(count, mirror_first=)``          ``multiply(x, a, m, b)``: x a + conj(m) b
``select(picks)``, ``join``                        ``select(x)``, ``join(a, b)``: registers reordered
``select_or_zero(picks)``                          ``select(x)``: the same, zeros for -1
``pair_halves(spec)``                              ``pair(x)``: halves regrouped
``pair_halves_swapped(spec)``                      ``pair(x, swap)``: low and high halves exchanged in
                                                   lanes whose ``swap`` is 1
``transpose(picks)``                               ``transpose(x)``: 8 x 8 blocks of halves transposed
``columns_product(column_tiles, k_tiles, ...)``    ``product(source, word, a)``: a times a factor that is read where
                                                   it is used, from shared memory or ``source``
``multiply_words(parts)``                          ``multiply(values, words)``: complex float32 times complex words,
                                                   rounded to words (`gpu_words.py`)
``turn_words(parts, swap=)``                       ``turn(values, planes)``: the same in halves, rounded before
``widen_words(count)``, ``mirror_words(count)``    ``widen(words)`` to float32; ``multiply(x, a, m, b)``
``no_sums``, ``correlate``, ``correlate_shared``,  ``correlate(sums, z, w)``: sums + conj(z) w in float32, in
``correlate_global``, ``store_sums_global``        registers, shared or global memory (``gpu_correlation.py``)
================================================== ========================================================

Groups of four warps have operations of their own on compute capability 9.0. Their operands lie in shared memory as core
matrices (8 x 8 halves, ``layout.group_left_index`` and ``group_right_index``), but for data in registers.

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
``team_barrier(warps)``                            ``meet(team)``: the warps of one team of the block meet
``fence_async``                                    ``fence()``: products may read what this lane wrote, after
                                                   the next barrier
``store_matrices(pieces)``                         ``store(word, x)``: four registers as four core matrices
``group_dft_rows(columns, k_tiles, ...)``          ``dft(factor, data)``: contract the rows
``group_dft_rows_times(..., table=)``              ``dft(factor, data, source, at, alone)``: the same, rounded
                                                   and multiplied by a complex table
``group_dft_columns_times(columns, k_tiles, ...)`` ``dft(data, factor, source, at)``: contract the columns
``group_to_parts_times``, ``group_from_parts``     two real sequences by a complex factor and a table, and back
``group_dft_columns_of_both``                      ``dft(data, factor, source, at)``: of two sequences, by one table
================================================== ========================================================

Some kernels have a vocabulary of their own beside that (``gpu_vocabularies.py``). "float", for fp32 convolutions, the
transforms of filters and short filters:

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
``load_floats(pieces, count, guarded=)``           ``load(source, base, limit, at)``: float32
``store_floats(pieces, guarded=)``                 ``store(target, base, limit, at, x)``
``copy_floats(pieces, guarded=)``                  ``copy(source, base, limit, at, to_word)``: asynchronous
``multiply_floats(count)``,                        ``multiply(a, b)``: elementwise, float32; the same of complex
``multiply_complex_floats(count)``                 points
``dft_points(points, groups, inverse=, ...)``      ``dft(x)``: short transforms of complex float32 points
``load_points(places)``, ``store_points(places)``  ``load(word)``, ``store(word, x)``: points in shared memory
``multiply_points(factors, count, conjugate=)``    ``multiply(x, table, at)``: by complex numbers of a table
``multiply_mirrored(places, stride)``              ``multiply(x, table, at, word, starts)``: x a + conj(m) b
``load_taps(count, kind)``                         ``load(taps, row, places, at, step)``: of any float type
``load_strided(count)``, ``store_strided(count)``  ``load(source, at, step)``: points, any distance apart
``multiply_strided(count)``                        ``multiply(x, table, at, step)``
``gather_points(count)``, ``weigh(count)``         ``gather(source, base, places)``, ``weigh(total, x, w)``
``magnitude(count)``, ``largest_word(count)``      ``magnitude(x, so_far)``, ``largest(words)``: maxima
``power_above(least, most)``                       ``power(peak)``: the power of two that scales a peak
``samples_at(count, kind)``, ``turn_by_words``     ``samples(taps, row, numbers)``, ``turn(x, words)``: by registers
``largest_part(count, lanes)``, ``powers_above``   ``largest(x)`` over lanes; ``powers(words)`` of several peaks,
``divide_groups(groups, each)``                    and ``divide(x, powers)``
``combine_pairs(pairs, count, room)``              ``combine(word, places, first, second)``: X a + conj(M) b
``correlate_points(count)``, ``add_turned(count)`` ``correlate(sums, z, w)``; ``add(so_far, x, re, im)``: times a number
``add_hermitian(constants)``                       ``add(so_far, source, base, places, roots, k)``: four bins a point
``gather_shared(count)``, ``plus``,                ``gather(word, table, at, step)``: shared memory by a table;
``scaled_total(count, groups)``                    elementwise sums; sums of registers times a factor
``filter_taps(chunks, words, taps, ahead=)``       ``filter(x, edge, weights)``: sums of a few neighbours
``add_taps(chunks, words, taps)``, ``over_lanes``  ``add(sums, dy, x, edge)``: their weights' gradients; sums of lanes
``zeros``, ``narrow``, ``as_words``,                registers of zeros, float64 to float32, float32 as words,
``divide_floats``                                  and over a power of two
================================================== ========================================================

"linear", for linear layers:

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
``load_chunks(pieces, guarded=, stream=)``         ``load(source, at, limit, offsets)``: 16 bytes a lane
``places(count)``                                  ``places(first, step, last, stride, start)``: offsets
                                                   of rows, for loads of chunks and pairs
``load_pairs(order)``                              ``load(source, near, limit, far, limit, offsets)``
``copy_rows(count, ...)``                          ``copy(to_half, source, at, stride, rows, valid)``
``load_matrices(constants)``                       ``load(word)``: operands from shared memory
``mma_add(row_tiles, column_tiles, k_tiles)``      ``mma_add(c, a, b)``: c plus the product, in float32
``dot_add(rows, columns, words)``                  ``dot_add(sums, w, x)``: a lane's own dot products
``zeros(count)``, ``add(count)``                   ``zeros()``, ``add(a, b)``: float32
``sum_lanes(count)``                               ``sum_lanes(values)``: float32 sums over the warp
``as_words(count)``, ``as_floats(count)``          the bits of float32 as words, and back
``store_rounded``, ``store_float``                 ``store(target, at, valid, value)``: one a lane
``store_tile(row_groups, column_tiles, halves)``   ``store(target, at, stride, rows, columns, c)``
``store_sums(count)``, ``load_sums(count)``         ``store(target, at, stride, values)``, ``load(source,
                                                   at, stride)``: partial sums between blocks
``load_fresh``                                     ``load(source, at)``: what another block wrote
``last_block``                                     ``last_block(counters, at, expected)``
``wait_for_previous``, ``let_next_start``          order of launches that overlap
``group_mma_add(columns, k_tiles)``                ``mma_add(c, left, right)``: begin c plus a warpgroup's
                                                   product of slabs in shared memory (9.0)
``group_wait(columns, pending)``                   ``c = wait(c)``: until so many products are under way
``store_group``, ``store_group_turned``            ``store(target, at, stride, rows, columns, c)``: to a matrix,
                                                   or to its transpose
``clear_halves(count, step, most)``                ``clear(at_half, elements)``: zeros to shared memory
``copy_words(count, ...)``                         ``copy(to_half, source, at, stride, rows, elements)``
``begin_gates(stages, arrivals)``                  ``begin(at, word)``: barriers for ``stages`` buffers
``prefetch_map``, ``announce``, ``bring_box``      ``prefetch(map)``; ``announce(word, nbytes)``;
                                                   ``bring(to_word, word, map, row, column)``: the copy engine
                                                   brings a box of a matrix
``await_barrier``, ``arrive``                      ``wait(word, parity)``; ``arrive(word)``: done with a buffer
``meet_cluster``, ``part_of(count, parts)``,       ``meet()``; ``take(values, part)``; ``give(word, rank, values)``:
``give_sums(count)``                               sums to another block of the cluster
================================================== ========================================================

"attention", for attention and softmax:

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
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

"probe", for measuring a GPU:

================================================== ========================================================
``load_quads(count)``, ``store_quads(count)``      ``load(source, at, step)``, ``store(target, at, step, x)``
``reload_quads(count)``                            ``load(word, step)``: from shared memory, each time anew
``fold_quads(count)``, ``repeat_quad(count)``      ``fold(quad, x)``: exclusive or; ``repeat(quad)``
``multiply_adds(count, steps)``                    ``chain(x, a, b)``: x a + b in float32, again and again
``multiply_adds_halves(count, steps)``             the same on registers of two halves
``mma_narrow_add(products)``                       ``product(c, a, b)``: c + a b by m16n8k8
``mma_tf32_add(products)``                         the same on TF32
``group_mma_add(columns, k_tiles)``                ``product(c, left, right)``: c + a b of four warps, a and b
                                                   in shared memory
================================================== ========================================================

"layers", for convolution layers, has the operations of "linear" and these. A *point* is a complex number of two halves
in one word.

================================================== ========================================================
``load_window(groups, words, halves, spread=)``    ``load(source, base, pitch, row, column, height, width,
                                                   down, across)``: rows of an image, zeros outside
``store_window(groups, tiles, halves, spread=)``   ``store(target, base, pitch, row, column, height, width,
                                                   down, across, c)``: accumulators to an image, cropped
``pack_points(count)``                             ``pack(values)``: real and imaginary float32 to points
``fold_mirrors(count)``                            ``fold(points)``: p + m and -i (p - m)
``complex_columns(count, conjugate=)``             ``operands(points)``: operands of a complex product
``store_points(row_groups, column_tiles)``         ``store(target, at, stride, rows, columns, c)``
``store_outer_points(row_groups, column_tiles)``   the same, conj(g) x from products of their parts
``move_words(count, shared_step)``                 ``move(word, target, at, stride, valid)``: shared to
                                                   global memory
``load_matrices_across(tiles, slab_words)``        ``load(word, chunk, turn)``: blocks, transposed
================================================== ========================================================

"outer", for the outer stages of long transforms:

================================================== ========================================================
made outside the kernel                            called inside
================================================== ========================================================
``load_transposed(constants)``                     ``load(word)``: blocks from shared memory, transposed
``widen(count)``                                   ``widen(x)``: registers of halves as float32
``turn_rows(groups, registers)``                   ``turn(x, table)``: by a complex number for each row
``turn_runs(runs, count, points=, ...)``           ``turn(x, row0, row1, row2, column)``: by twiddles,
                                                   computed where they are used
================================================== ========================================================

"wide" has the same words as the first table: what touches sequences reads and writes float32.

Nothing outside this package imports ``numba.cuda``; importing the package itself imports nothing.
"""
